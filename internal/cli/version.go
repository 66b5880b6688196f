package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// ProtocolVersion is the version of MissionWeaveProtocol that is spoken.
const ProtocolVersion = "0.1"

// buildVersion is set by the release build (-ldflags "-X …cli.buildVersion=…").
var buildVersion string

// versionInfo tells which program this is.
type versionInfo struct {
	Version  string `json:"version"`
	Protocol string `json:"protocol"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from changed files
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: buildVersion, Protocol: ProtocolVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v versionInfo) String() string {
	s := fmt.Sprintf("mw %s, MissionWeaveProtocol %s, %s %s", v.Version, v.Protocol, v.Go, v.Platform)
	if v.Commit != "" {
		s += ", commit " + v.Commit
		if v.Modified {
			s += " with changes"
		}
	}
	return s
}

func newVersionCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the protocol",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if app.JSON {
				return app.PrintJSON(v)
			}
			_, err := fmt.Fprintln(app.Out, v)
			return err
		},
	}
}
