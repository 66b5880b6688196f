package groups

// workKinds and workEvents are the rows of WorkItems, Artifacts, execution
// approvals, budgets and leases.
func workKinds() []Kind { return nil }

func workEvents() []EventKind { return nil }
