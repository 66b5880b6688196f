package groups

func missionKinds() []Kind      { return nil }
func memberKinds() []Kind       { return nil }
func messageKinds() []Kind      { return nil }
func proposalKinds() []Kind     { return nil }
func organizationKinds() []Kind { return nil }

func missionEvents() []EventKind      { return nil }
func memberEvents() []EventKind       { return nil }
func messageEvents() []EventKind      { return nil }
func organizationEvents() []EventKind { return nil }

const (
	roleMissionOwner = "mission_owner"
	roleCoordinator  = "coordinator"
)
