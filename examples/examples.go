// Package examples embeds the Mission files that come with the server.
package examples

import _ "embed"

// Release is missions/release.yaml, the Mission that mw demo carries out when
// it is given none.
//
//go:embed missions/release.yaml
var Release []byte

// ReleaseName is the name of Release in messages.
const ReleaseName = "examples/missions/release.yaml"
