package groups

import "slices"

// workKinds are the Commands on WorkItems (COMMANDS.md 5.4 to 5.6), in the
// order of the catalogue.
func workKinds() []Kind {
	return []Kind{
		workAuthorizeKind(),
		workOfferKind(),
		workAcceptOfferKind(),
		offerDeclineKind(),
		dependencyAddKind(),
		workStartKind(),
		executionLeaseRenewKind(),
		ownershipLeaseRenewKind(),
		usageRecordKind(),
		workCheckpointKind(),
		workBlockKind(),
		workUnblockKind(),
		artifactPublishKind(),
		workSubmitKind(),
		workAcceptResultKind(),
		workFailKind(),
		workCancelKind(),
		grantExecutionKind(),
		requestExecutionKind(),
		denyExecutionKind(),
		revokeExecutionKind(),
		requestActionKind(),
		decideActionKind(),
		consumeActionKind(),
	}
}

// workEvents are the Events of WorkItems, Artifacts, execution approvals,
// budgets and leases.
func workEvents() []EventKind {
	return slices.Concat(workLifeEvents(), workTurnEvents(), usageEvents(), approvalEvents())
}
