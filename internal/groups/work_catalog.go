package groups

// workKinds are the Commands on WorkItems (COMMANDS.md 5.4 to 5.6), in the
// order of the catalogue.
func workKinds() []Kind {
	return []Kind{
		workAuthorizeKind(),
		workOfferKind(),
		workAcceptOfferKind(),
		workStartKind(),
		executionLeaseRenewKind(),
		workCheckpointKind(),
		artifactPublishKind(),
		workSubmitKind(),
		workAcceptResultKind(),
	}
}

// workEvents are the Events of WorkItems, Artifacts, execution approvals,
// budgets and leases.
func workEvents() []EventKind { return workLifeEvents() }
