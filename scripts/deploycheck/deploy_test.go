package deploycheck

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/missionweave/server/internal/config"
)

type dependency struct {
	Condition string `yaml:"condition"`
}

type healthcheck struct {
	Test    []string       `yaml:"test"`
	Disable bool           `yaml:"disable"`
	Rest    map[string]any `yaml:",inline"`
}

type service struct {
	Image       string                `yaml:"image"`
	Build       string                `yaml:"build"`
	Command     []string              `yaml:"command"`
	Environment map[string]string     `yaml:"environment"`
	Ports       []string              `yaml:"ports"`
	Volumes     []string              `yaml:"volumes"`
	Healthcheck *healthcheck          `yaml:"healthcheck"`
	DependsOn   map[string]dependency `yaml:"depends_on"`
	Restart     string                `yaml:"restart"`
	ReadOnly    bool                  `yaml:"read_only"`
}

type composeFile struct {
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

func repositoryFile(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func compose(t *testing.T) composeFile {
	t.Helper()
	var c composeFile
	if err := yaml.Unmarshal([]byte(repositoryFile(t, "docker-compose.yml")), &c); err != nil {
		t.Fatal(yaml.FormatError(err, false, true))
	}
	if len(c.Services) == 0 {
		t.Fatal("no services")
	}
	return c
}

// oneShot are services that do their work and end.
var oneShot = []string{"migrate", "organization"}

// programs are what the image holds.
var programs = []string{"mw", "authority", "registry", "authz"}

func TestComposeStartsInOrderOfHealth(t *testing.T) {
	t.Parallel()
	c := compose(t)
	want := map[string]map[string]string{
		"migrate":      {"postgres": "service_healthy"},
		"organization": {"migrate": "service_completed_successfully"},
		"registry":     {"postgres": "service_healthy", "nats": "service_healthy", "organization": "service_completed_successfully"},
		"authority":    {"postgres": "service_healthy", "nats": "service_healthy", "organization": "service_completed_successfully", "registry": "service_healthy"},
		"authz":        {"postgres": "service_healthy", "nats": "service_healthy", "organization": "service_completed_successfully", "registry": "service_healthy"},
	}
	for name, deps := range want {
		got := map[string]string{}
		for dep, d := range c.Services[name].DependsOn {
			got[dep] = d.Condition
			if _, known := c.Services[dep]; !known {
				t.Errorf("%s depends on %s, which is no service", name, dep)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(deps) {
			t.Errorf("%s depends on %v, want %v", name, got, deps)
		}
	}
	for _, name := range oneShot {
		if c.Services[name].Restart != "no" {
			t.Errorf("%s would be started for ever", name)
		}
	}
}

func TestHealthChecksNeedNoShell(t *testing.T) {
	t.Parallel()
	for name, s := range compose(t).Services {
		switch {
		case slices.Contains(oneShot, name):
			if s.Healthcheck == nil || !s.Healthcheck.Disable {
				t.Errorf("%s inherits the image's health check", name)
			}
		case s.Healthcheck == nil || len(s.Healthcheck.Test) < 2:
			t.Errorf("%s has no health check", name)
		case s.Healthcheck.Test[0] != "CMD":
			t.Errorf("%s: health check %v runs in a shell", name, s.Healthcheck.Test)
		case s.Build != "" && fmt.Sprint(s.Healthcheck.Test[1:]) != fmt.Sprintf("[%s healthcheck]", s.Command[0]):
			t.Errorf("%s: health check %v asks another program than %v", name, s.Healthcheck.Test, s.Command)
		}
	}
}

func TestSettingsInDeploymentFilesExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range config.New().Fields() {
		known[f.Env()] = true
	}
	for name, s := range compose(t).Services {
		if s.Build == "" {
			continue
		}
		for variable := range s.Environment {
			if !known[variable] {
				t.Errorf("%s: %s is no setting", name, variable)
			}
		}
		if s.Command[0] != "/mw" && !strings.HasPrefix(s.Environment["MW_LISTEN_ADDRESS"], "0.0.0.0:") {
			t.Errorf("%s would listen inside its container only", name)
		}
	}
	for _, variable := range regexp.MustCompile(`\bMW_[A-Z_]+`).FindAllString(repositoryFile(t, "Dockerfile"), -1) {
		if !known[variable] {
			t.Errorf("Dockerfile: %s is no setting", variable)
		}
	}
}

func TestNothingIsOpenToTheNetworkOrUnconfined(t *testing.T) {
	t.Parallel()
	c := compose(t)
	for name, s := range c.Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s on every interface", name, p)
			}
		}
		if s.Build != "" && !s.ReadOnly {
			t.Errorf("%s can write to its image", name)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if source == "identity" && name != "organization" && !strings.HasSuffix(v, ":ro") {
				t.Errorf("%s may write to the keys", name)
			}
			if _, known := c.Volumes[source]; !known {
				t.Errorf("%s uses the volume %s, which is not declared", name, source)
			}
		}
	}
	for name := range c.Services {
		if pass := c.Services[name].Environment["POSTGRES_PASSWORD"]; pass != "" && !strings.HasPrefix(pass, "${") {
			t.Errorf("%s: a password is written into the file", name)
		}
	}
}

func TestDockerfileShipsEveryProgramWithoutPrivileges(t *testing.T) {
	t.Parallel()
	text := repositoryFile(t, "Dockerfile")
	stages := regexp.MustCompile(`(?m)^FROM `).Split(text, -1)
	last := stages[len(stages)-1]
	if !strings.HasPrefix(last, "gcr.io/distroless/static-") || !strings.Contains(last, "\nUSER nonroot") {
		t.Error("the last stage is not a static image of an unprivileged user")
	}
	if !strings.Contains(text, "CGO_ENABLED=0") {
		t.Error("programs that need a C library do not run in a static image")
	}
	for _, p := range programs {
		if !strings.Contains(last, "/out/"+p+" ") {
			t.Errorf("the image lacks %s", p)
		}
	}
	used := []string{}
	for _, s := range compose(t).Services {
		if s.Build != "" {
			used = append(used, strings.TrimPrefix(s.Command[0], "/"))
		}
	}
	for _, p := range used {
		if !slices.Contains(programs, p) {
			t.Errorf("docker-compose.yml runs %s, which the image lacks", p)
		}
	}
	goLine := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(repositoryFile(t, "go.mod"))
	if goLine == nil || !strings.Contains(text, "GO_VERSION="+goLine[1]) {
		t.Errorf("the build stage's Go is not that of go.mod (%v)", goLine)
	}
}
