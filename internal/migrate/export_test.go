package migrate

// The tests bring migrations of their own.
var (
	UpFiles     = up
	StatusFiles = status
)

const LockKey = lockKey
