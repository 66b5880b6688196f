package testkit_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/api"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/testkit"
)

func contract(t *testing.T) *testkit.Contract {
	t.Helper()
	c, err := testkit.ReadContract()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }

func words(v any) []string {
	list, _ := v.([]any)
	out := []string{}
	for _, w := range list {
		out = append(out, fmt.Sprint(w))
	}
	return out
}

func TestContractIsWellFormed(t *testing.T) {
	c := contract(t)
	for name := range object(object(c.Document["components"])["schemas"]) {
		if _, err := c.Schema("/components/schemas/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v["$ref"].(string); ok {
				if _, _, err := c.Resolve("", v); err != nil {
					t.Errorf("%s: %v", where, err)
				}
			}
			for name, member := range v {
				walk(where+"/"+name, member)
			}
		case []any:
			for i, member := range v {
				walk(fmt.Sprint(where, "/", i), member)
			}
		}
	}
	walk("", c.Document)
	ids := map[string]bool{}
	for path, item := range object(c.Document["paths"]) {
		for method, operation := range object(item) {
			id := fmt.Sprint(object(operation)["operationId"])
			if ids[id] {
				t.Errorf("%s %s: operationId %s is taken", method, path, id)
			}
			ids[id] = true
			if object(object(operation)["responses"])["default"] == nil {
				t.Errorf("%s %s has no default response", method, path)
			}
		}
	}
}

func TestContractNamesEveryErrorCode(t *testing.T) {
	codes := object(object(object(contract(t).Document["components"])["schemas"])["ErrorCode"])
	var want []string
	for _, code := range protocol.Codes() {
		want = append(want, string(code))
	}
	got := words(codes["enum"])
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestContractAndRoutesAgree(t *testing.T) {
	s := testkit.Start(t)
	c := contract(t)
	declared := map[string]httpkit.Route{}
	for service, routes := range s.Routes() {
		for _, route := range routes {
			declared[service+" "+route.Method+" "+route.Pattern] = route
		}
	}
	described := map[string]bool{}
	for path, item := range object(c.Document["paths"]) {
		for method, operation := range object(item) {
			operation := object(operation)
			method = strings.ToUpper(method)
			for _, service := range words(operation["tags"]) {
				name := service + " " + method + " " + path
				described[name] = true
				if path == "/ws" { // does its own HTTP
					continue
				}
				route, ok := declared[name]
				if !ok {
					t.Errorf("%s is described and not served", name)
					continue
				}
				agree(t, c, name, route, operation)
			}
		}
	}
	for name := range declared {
		if !described[name] {
			t.Errorf("%s is served and not described", name)
		}
	}
}

func agree(t *testing.T, c *testkit.Contract, name string, route httpkit.Route, operation map[string]any) {
	t.Helper()
	security, own := operation["security"].([]any)
	if public := own && len(security) == 0; public != (route.Auth == httpkit.Public) {
		t.Errorf("%s: described as public: %t", name, public)
	}
	parameters := map[string][]string{}
	list, _ := operation["parameters"].([]any)
	for _, p := range list {
		_, parameter, err := c.Resolve("", object(p))
		if err != nil {
			t.Fatal(err)
		}
		in := fmt.Sprint(parameter["in"])
		parameters[in] = append(parameters[in], fmt.Sprint(parameter["name"]))
	}
	var inPath []string
	for _, match := range parameter.FindAllStringSubmatch(route.Pattern, -1) {
		inPath = append(inPath, match[1])
	}
	for in, want := range map[string][]string{"query": slices.Clone(route.Query), "path": inPath} {
		got := parameters[in]
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s parameters %v are described, %v are served", name, in, got, want)
		}
	}
	body := object(object(operation["requestBody"])["content"])
	takes := route.Method == http.MethodPost || route.Method == http.MethodPut
	if takes != (body != nil) {
		t.Errorf("%s: described with a body: %t", name, body != nil)
	}
	want := route.ContentType
	switch want {
	case "":
		want = "application/json"
	case "*":
		want = "*/*"
	}
	if takes && body[want] == nil {
		t.Errorf("%s: no body of type %s is described", name, want)
	}
}

func TestContractIsServedByEachService(t *testing.T) {
	s := testkit.Start(t)
	for _, base := range []string{s.AuthorityURL, s.RegistryURL, s.AuthzURL} {
		a := s.Do(testkit.Request{Method: "GET", URL: base + "/openapi.yaml"})
		if a.Status != 200 || string(a.Body) != string(api.OpenAPI) {
			t.Errorf("%s: %d, %d bytes", base, a.Status, len(a.Body))
		}
	}
}
