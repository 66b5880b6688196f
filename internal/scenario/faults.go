package scenario

import "context"

// faults plays the failure suite.
func (st *stage) faults(context.Context) {}
