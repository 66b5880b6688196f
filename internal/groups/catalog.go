package groups

func memberKinds() []Kind       { return nil }
func messageKinds() []Kind      { return nil }
func proposalKinds() []Kind     { return nil }
func organizationKinds() []Kind { return nil }

func memberEvents() []EventKind       { return nil }
func messageEvents() []EventKind      { return nil }
func organizationEvents() []EventKind { return nil }
