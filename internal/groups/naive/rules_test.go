package naive

import "maps"

// rules is the second model's catalogue.
var rules = map[string]rule{}

func init() {
	for _, part := range []map[string]rule{missionRules(), memberRules(), planRules(), workRules(), approvalRules()} {
		maps.Copy(rules, part)
	}
}
