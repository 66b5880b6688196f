package manifest

import (
	"bytes"
	"fmt"
)

// Bounds of a YAML text. The YAML reader takes quadratic time in some shapes, so
// they are looked for before it is asked; a manifest that needs more is written as
// JSON, which is read in linear time.
const (
	maxYAMLBytes   = 1 << 20
	maxLine        = 64 << 10
	maxIndicators  = 256 // `- `, `? `, `: ` on one line
	maxYAMLKeys    = 4096
	maxYAMLCommas  = 16_384
	maxYAMLAliases = 4096
	maxYAMLAnchors = 256
)

// screen refuses YAML that would take too long to read: the line and the reason,
// "" when there is nothing to refuse.
func screen(source []byte) (line int, reason string) {
	if len(source) > maxYAMLBytes {
		return 1, fmt.Sprintf("is larger than %d bytes as YAML; write it as JSON", maxYAMLBytes)
	}
	var keys [maxLine]int32 // by indentation, since the last line with less of it
	deepest := 0
	commas, aliases, anchors := 0, 0, 0
	for text := range bytes.Lines(source) {
		line++
		if len(text) >= maxLine {
			return line, fmt.Sprintf("has a line of more than %d bytes", maxLine)
		}
		indicators := 0
		for i, c := range text {
			next := byte('\n')
			if i+1 < len(text) {
				next = text[i+1]
			}
			space := next == ' ' || next == '\n' || next == '\t' || next == '\r'
			switch c {
			case '-', '?', ':':
				if space {
					indicators++
				}
			case ',':
				commas++
			case '*':
				if !space {
					aliases++
				}
			case '&':
				if !space {
					anchors++
				}
			}
		}
		switch {
		case indicators > maxIndicators:
			return line, fmt.Sprintf("has more than %d indicators on one line", maxIndicators)
		case commas > maxYAMLCommas:
			return line, fmt.Sprintf("has more than %d commas; write it in blocks or as JSON", maxYAMLCommas)
		case aliases > maxYAMLAliases:
			return line, fmt.Sprintf("has more than %d aliases", maxYAMLAliases)
		case anchors > maxYAMLAnchors:
			return line, fmt.Sprintf("has more than %d anchors", maxYAMLAnchors)
		}
		bare := bytes.TrimLeft(text, " ")
		if len(bytes.TrimSpace(bare)) == 0 || bare[0] == '#' {
			continue
		}
		indent := len(text) - len(bare)
		for ; deepest > indent; deepest-- {
			keys[deepest] = 0
		}
		deepest = indent
		if bare[0] == '-' {
			continue // an item of a list, in which keys begin anew
		}
		if keys[indent]++; keys[indent] > maxYAMLKeys {
			return line, fmt.Sprintf("has more than %d lines in one map; write it as JSON", maxYAMLKeys)
		}
	}
	return 0, ""
}
