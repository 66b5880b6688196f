package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/missionweave/server/api"
)

// Contract is the OpenAPI document, ready to hold answers against it.
type Contract struct {
	Document map[string]any

	compiler *jsonschema.Compiler
	mu       sync.Mutex
	compiled map[string]*jsonschema.Schema
	paths    []contractPath
}

type contractPath struct {
	template string
	pattern  *regexp.Regexp
	item     map[string]any
}

// contractURL is the base of references inside the document.
const contractURL = "https://contract.test/openapi.json"

// ReadContract reads the document that the services serve.
var ReadContract = sync.OnceValues(func() (*Contract, error) {
	var parsed any
	if err := yaml.Unmarshal(api.OpenAPI, &parsed); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	b, err := json.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	c := &Contract{Document: document.(map[string]any), compiled: map[string]*jsonschema.Schema{}}
	c.compiler = jsonschema.NewCompiler()
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource(contractURL, document); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	for template, item := range object(c.Document["paths"]) {
		pattern := regexp.QuoteMeta(template)
		pattern = regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(pattern, `[^/]+`)
		c.paths = append(c.paths, contractPath{template, regexp.MustCompile("^" + pattern + "$"), object(item)})
	}
	return c, nil
})

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// Operation finds the operation of a request, "" when the document has none.
// A template without parameters goes before one with them.
func (c *Contract) Operation(method, escapedPath string) (pointer string, operation map[string]any) {
	var found contractPath
	for _, p := range c.paths {
		if p.pattern.MatchString(escapedPath) && (found.item == nil || strings.Count(p.template, "{") < strings.Count(found.template, "{")) {
			found = p
		}
	}
	operation = object(found.item[strings.ToLower(method)])
	if operation == nil {
		return "", nil
	}
	return "/paths/" + escapePointer(found.template) + "/" + strings.ToLower(method), operation
}

func escapePointer(s string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(s))
}

// Resolve follows a reference inside the document.
func (c *Contract) Resolve(pointer string, v map[string]any) (string, map[string]any, error) {
	ref, ok := v["$ref"].(string)
	if !ok {
		return pointer, v, nil
	}
	target := any(c.Document)
	for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		target = object(target)[part]
	}
	if object(target) == nil {
		return "", nil, fmt.Errorf("openapi.yaml: %s leads nowhere", ref)
	}
	return strings.TrimPrefix(ref, "#"), object(target), nil
}

// Check holds an answer against the document. Answers to requests that the
// document does not know are not looked at.
func (c *Contract) Check(method, escapedPath string, a Answer) error {
	pointer, operation := c.Operation(method, escapedPath)
	if operation == nil {
		return nil
	}
	responses := object(operation["responses"])
	status := fmt.Sprint(a.Status)
	response := object(responses[status])
	if response == nil {
		return fmt.Errorf("%s %s: the contract has no status %s", method, escapedPath, status)
	}
	pointer, response, err := c.Resolve(pointer+"/responses/"+status, response)
	if err != nil {
		return err
	}
	mediaType, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";")
	content := object(response["content"])
	if content == nil && len(a.Body) == 0 {
		return nil
	}
	if object(content[mediaType]) == nil {
		return fmt.Errorf("%s %s: status %s has no content %q in the contract", method, escapedPath, status, mediaType)
	}
	if mediaType != "application/json" {
		return nil
	}
	schema, err := c.Schema(pointer + "/content/" + escapePointer(mediaType) + "/schema")
	if err != nil {
		return err
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.Body))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, escapedPath, err)
	}
	if err := schema.Validate(body); err != nil {
		return fmt.Errorf("%s %s: status %s: %w\n%s", method, escapedPath, status, err, a.Body)
	}
	return nil
}

// Schema is the schema at a JSON Pointer of the document.
func (c *Contract) Schema(pointer string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.compiled[pointer]; ok {
		return s, nil
	}
	s, err := c.compiler.Compile(contractURL + "#" + pointer)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	c.compiled[pointer] = s
	return s, nil
}
