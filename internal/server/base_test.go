package server

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devstack"
)

func TestAServiceDoesNotWaitForADatabaseThatIsNotThere(t *testing.T) {
	address, err := url.Parse(devstack.ForTest(t).NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/there_is_no_such_database"
	settings := config.New()
	settings.DatabaseURL = address.String()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := open(ctx, "test", Options{Settings: settings})
	if err == nil {
		b.pool.Close()
	}
	if err == nil || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}
