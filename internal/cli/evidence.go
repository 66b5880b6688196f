package cli

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/evidencesuite"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// maxRecordBytes bounds what is read as one record.
const maxRecordBytes = 16 << 20

func newEvidenceCommand(app *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evidence",
		Short: "Check, compare and test agent evidence records (aep/v0.3)",
		Long:  "Evidence works on records in files; it needs no server. The rules are listed in docs/evidence-rules.md.",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newEvidenceVerifyCommand(app), newEvidenceCompareCommand(app), newEvidenceTestCommand(app))
	return cmd
}

func newEvidenceVerifyCommand(app *App) *cobra.Command {
	var keys []string
	var previous string
	var archive, envelopes bool
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check one record: shape, agreement of members and, with a key, the signature",
		Long: `Verify reads one record and prints every rule it breaks with id, name and place.
Without --key the signature is not checked, and the output says so. A key is KEYID=KEY,
where KEY is a 32-byte Ed25519 public key in hexadecimal or base64url; KEY alone answers
for every key id. FILE - is standard input. It exits 1 when a rule is broken.`,
		Example: "  mw evidence verify record.json\n  mw evidence verify --key key-1=29e5833a… record.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			opt := evidence.Options{Archive: archive, Signature: len(keys) > 0}
			lookup, err := parseKeys(keys)
			if err != nil {
				return err
			}
			opt.Keys = lookup
			if previous != "" {
				raw, err := app.readRecord(previous)
				if err != nil {
					return err
				}
				if opt.Previous, err = evidence.ParseValue(raw); err != nil {
					return Usagef("--previous: %w", err)
				}
			}
			raw, err := app.readRecord(args[0])
			if err != nil {
				return err
			}
			record, report := evidence.Check(raw, opt)
			if !opt.Signature {
				// A member that comes twice is read in two ways, also where nobody looks at the
				// signature.
				strict := opt
				strict.Signature = true
				_, all := evidence.Check(raw, strict)
				for _, f := range all.Errors {
					if f.Rule == "C-12" {
						report.Errors = append(report.Errors, f)
					}
				}
			}
			if opt.Previous != nil && !opt.Signature && record != nil && record.Get("prev_record_hash").Str() != evidence.RecordHash(opt.Previous) {
				report.Errors = append(report.Errors, evidence.Finding{Rule: "C-09", Name: "E_CHAIN_BROKEN", Path: "/prev_record_hash", Message: "the record before has another hash"})
			}
			return app.printEvidence(args[0], record, report, envelopes)
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "public key for the signature: KEYID=KEY or KEY; may be given again")
	cmd.Flags().StringVar(&previous, "previous", "", "file of the record before this one, for prev_record_hash")
	cmd.Flags().BoolVar(&archive, "archive", false, "verify old records with unsafe strings or numbers over the bytes that were signed")
	cmd.Flags().BoolVar(&envelopes, "envelopes", false, "print the decision envelope and the authority assessment of every action")
	return cmd
}

// actionView is what a reader may want derived from an action.
type actionView struct {
	ActionID   string              `json:"actionId"`
	Envelope   evidence.Envelope   `json:"decisionEnvelope"`
	Assessment evidence.Assessment `json:"assessment"`
}

func (a *App) printEvidence(name string, record *evidence.Value, report *evidence.Report, envelopes bool) error {
	var views []actionView
	if envelopes && slices.Contains(report.Tiers, 2) {
		for _, act := range record.Get("actions").Items() {
			views = append(views, actionView{act.Get("action_id").Str(), evidence.EnvelopeOf(record, act), evidence.Assess(act)})
		}
	}
	var err error
	if a.JSON {
		err = a.PrintJSON(struct {
			Valid bool `json:"valid"`
			*evidence.Report
			Actions []actionView `json:"actions,omitempty"`
		}{report.OK(), report, views})
	} else {
		err = a.printEvidenceText(name, report, views)
	}
	if err == nil && !report.OK() {
		return ErrSilent
	}
	return err
}

func (a *App) printEvidenceText(name string, report *evidence.Report, views []actionView) error {
	var b strings.Builder
	for _, f := range report.Errors {
		fmt.Fprintln(&b, f)
	}
	for _, f := range report.Warnings {
		fmt.Fprintln(&b, f)
	}
	for _, v := range views {
		env, err := v.Envelope.AppendJSON(nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s authority %s %s\n  %s\n", v.ActionID, v.Assessment.Authority, strings.Join(v.Assessment.Unproven, " "), env)
	}
	verdict := "valid"
	if !report.OK() {
		verdict = fmt.Sprintf("%d errors", len(report.Errors))
	}
	fmt.Fprintf(&b, "%s: %s, signature %s\n", name, verdict, report.Signature)
	_, err := io.WriteString(a.Out, b.String())
	return err
}

func newEvidenceCompareCommand(app *App) *cobra.Command {
	var actionA, actionB, sideA, sideB string
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Tell whether two state digests may be compared, and whether they are equal",
		Long: `Compare answers exactly one of comparable, not-comparable with the reason, or
comparable-under-assumption with the assumptions. A and B are files, each either
{"kind", "coverage", "digest"} or a record; of a record the post-state digest of its last
action with a digest is taken unless --action and --side say otherwise. It exits 1 when
the digests are not comparable.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			a, err := app.readDigest(args[0], actionA, sideA)
			if err != nil {
				return err
			}
			b, err := app.readDigest(args[1], actionB, sideB)
			if err != nil {
				return err
			}
			got := evidence.Compare(a, b, nil)
			if app.JSON {
				err = app.PrintJSON(got)
			} else {
				line := string(got.State)
				if got.Reason != "" {
					line += " (" + got.Reason + ")"
				}
				if len(got.Assumptions) > 0 {
					line += ": " + strings.Join(got.Assumptions, "; ")
				}
				if got.DigestsEqual != nil {
					line += map[bool]string{true: "\nthe digests are equal", false: "\nthe digests differ"}[*got.DigestsEqual]
				}
				_, err = fmt.Fprintln(app.Out, line)
			}
			if err == nil && got.State == evidence.NotComparable {
				return ErrSilent
			}
			return err
		},
	}
	cmd.Flags().StringVar(&actionA, "action-a", "", "action id in A, if A is a record")
	cmd.Flags().StringVar(&actionB, "action-b", "", "action id in B, if B is a record")
	cmd.Flags().StringVar(&sideA, "side-a", "post", "digest of A's action: pre or post")
	cmd.Flags().StringVar(&sideB, "side-b", "post", "digest of B's action: pre or post")
	return cmd
}

func (a *App) readDigest(file, action, side string) (evidence.Digest, error) {
	if side != "pre" && side != "post" {
		return evidence.Digest{}, Usagef("a side is pre or post, not %q", side)
	}
	raw, err := a.readRecord(file)
	if err != nil {
		return evidence.Digest{}, err
	}
	v, err := evidence.ParseValue(raw)
	if err != nil {
		return evidence.Digest{}, Usagef("%s: %w", file, err)
	}
	if v.Kind() != evidence.Object {
		return evidence.Digest{}, Usagef("%s is not a JSON object", file)
	}
	if !v.Get("schema_version").Exists() {
		return evidence.DigestOf(v), nil
	}
	var found *evidence.Value
	for _, act := range v.Get("actions").Items() {
		switch {
		case action != "" && act.Get("action_id").Str() == action:
			found = act
		case action == "" && (act.Get("pre_state_digest").Exists() || act.Get("post_state_digest").Exists()):
			found = act
		}
	}
	if found == nil {
		return evidence.Digest{}, Usagef("%s has no such action with a state digest", file)
	}
	pre, post := evidence.ActionDigests(found)
	if side == "pre" {
		return pre, nil
	}
	return post, nil
}

func newEvidenceTestCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "test DIR",
		Short: "Run a folder of evidence cases against this program",
		Long: `Test runs cases.json, comparability.json, envelope.json, canon.json and signed/ of DIR.
It prints one line that counts what passed, then one line per miss, and exits 1 on any.`,
		Example: "  mw evidence test ../shared/evidence",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := evidencesuite.Run(args[0])
			if err != nil {
				return Usagef("%w", err)
			}
			if app.JSON {
				err = app.PrintJSON(report)
			} else {
				_, err = report.WriteTo(app.Out)
			}
			if err == nil && !report.OK() {
				return ErrSilent
			}
			return err
		},
	}
}

// readRecord reads a file, or standard input for -, up to maxRecordBytes.
func (a *App) readRecord(name string) ([]byte, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, Usagef("%w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxRecordBytes+1))
	if err != nil {
		return nil, Usagef("%s: %w", name, err)
	}
	if len(raw) > maxRecordBytes {
		return nil, Usagef("%s is larger than %d bytes", name, maxRecordBytes)
	}
	return raw, nil
}

// parseKeys reads KEYID=KEY or KEY. A key id may hold equal signs, a key in
// hexadecimal or base64url without padding cannot.
func parseKeys(list []string) (evidence.KeyLookup, error) {
	byID := map[string]ed25519.PublicKey{}
	for _, s := range list {
		id, text := "", s
		if i := strings.LastIndexByte(s, '='); i >= 0 {
			id, text = s[:i], s[i+1:]
		}
		key, err := hex.DecodeString(text)
		if err != nil {
			key, err = lexical.DecodeBase64URL(text)
		}
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, Usagef("--key: a public key is 32 bytes in hexadecimal or base64url")
		}
		byID[id] = key
	}
	return func(id string) (ed25519.PublicKey, bool) {
		key, ok := byID[id]
		if !ok {
			key, ok = byID[""]
		}
		return key, ok
	}, nil
}
