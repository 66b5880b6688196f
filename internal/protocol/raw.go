package protocol

import "github.com/missionweave/server/internal/protocol/strictjson"

// Raw is JSON that is carried and not interpreted. Decoding puts canonical
// (JCS) bytes into it; encoding writes them back.
type Raw = strictjson.Raw
