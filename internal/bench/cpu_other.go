//go:build !linux

package bench

import (
	"context"
	"time"
)

// usage is known on Linux only.
type usage struct{}

func (s *stand) cpu(context.Context) usage { return usage{} }

func (usage) since(usage) time.Duration { return 0 }

func selfCPU() time.Duration { return 0 }
