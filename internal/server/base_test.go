package server

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devstack"
)

func TestAServiceDoesNotWaitForADatabaseThatRefusesItsLogin(t *testing.T) {
	good, err := url.Parse(devstack.ForTest(t).NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	password, name := *good, *good
	password.User = url.UserPassword(good.User.Username(), "wrong")
	name.Path = "/there_is_no_such_database"
	for what, u := range map[string]url.URL{"password": password, "database name": name} {
		settings := config.New()
		settings.DatabaseURL = u.String()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		b, err := open(ctx, "test", Options{Settings: settings})
		if err == nil {
			b.pool.Close()
		}
		if err == nil || ctx.Err() != nil {
			t.Errorf("wrong %s: %v", what, err)
		}
		cancel()
	}
}
