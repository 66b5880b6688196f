package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// DefaultHealthURL is the readiness address of a service on its usual
// management port.
const DefaultHealthURL = "http://127.0.0.1:8421/readyz"

func newHealthcheckCommand(app *App) *cobra.Command {
	return HealthcheckCommand(app, DefaultHealthURL)
}

// HealthcheckCommand asks a readiness address once. Images without a shell use
// it as their health check: the services' own programs add it with their own
// management address.
func HealthcheckCommand(app *App, defaultURL string) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "healthcheck [URL]",
		Short: "Ask a service whether it is ready (" + defaultURL + " without URL)",
		Long:  "Ask a service's readiness address once: exit code 0 when it answers 2xx, 1 when it\nanswers otherwise, 3 when it does not answer.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target := defaultURL
			if len(args) == 1 {
				target = args[0]
			}
			return healthcheck(cmd.Context(), app, target, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return cmd
}

func healthcheck(ctx context.Context, app *App, target string, timeout time.Duration) error {
	if u, err := url.Parse(target); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return Usagef("%q is not an http address", target)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return Usagef("%w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return Unavailable(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return Unavailable(err)
	}
	if app.JSON {
		err = app.PrintJSON(map[string]any{"url": target, "status": res.StatusCode, "ready": res.StatusCode/100 == 2})
	} else {
		_, err = fmt.Fprintln(app.Out, res.Status, strings.TrimSpace(string(body)))
	}
	if err == nil && res.StatusCode/100 != 2 {
		return ErrSilent
	}
	return err
}
