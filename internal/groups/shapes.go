package groups

import (
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
)

// Shapes shared by payload profiles (COMMANDS.md section 3).
var (
	shapeID       = shape.String().Max(512).Format(lexical.ValidID)
	shapePositive = shape.Int(1, 1<<53-1)
	shapeUint     = shape.Int(0, 1<<53-1)
)

var shapeOfflineBinding = shape.Object()
