package bundle

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
)

// maxLine bounds a line: the state of a Group is one.
const maxLine = 512 << 20

// A line is exactly
//
//	{"hash":"H","kind":"K","n":N,"value":V}
//
// and a line feed. H is 64 lower-case hexadecimal digits: SHA-256 over the hash
// of the line before (the hash of the format's name before the first), K, a zero
// byte and the bytes of V.
const (
	lineHash  = `{"hash":"`
	lineKind  = `","kind":"`
	lineN     = `","n":`
	lineValue = `,"value":`
	lineEnd   = "}\n"
)

type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

func firstHash() digest { return sha256.Sum256([]byte(Format)) }

// chain makes the hash of a line. Its buffer keeps what it hashes off the heap.
type chain struct {
	h   hash.Hash
	buf []byte
}

func newChain() *chain { return &chain{h: sha256.New(), buf: make([]byte, 0, 128)} }

func (c *chain) next(before *digest, kind string, value []byte) digest {
	c.h.Reset()
	c.buf = append(append(append(c.buf[:0], before[:]...), kind...), 0)
	_, _ = c.h.Write(c.buf)
	_, _ = c.h.Write(value)
	c.buf = c.h.Sum(c.buf[:0])
	return digest(c.buf)
}

// writer writes lines.
type writer struct {
	w     *bufio.Writer
	chain *chain
	hash  digest
	n     int64
}

func newWriter(w io.Writer) *writer {
	return &writer{w: bufio.NewWriterSize(w, 64<<10), chain: newChain(), hash: firstHash()}
}

func (w *writer) line(kind string, value []byte) error {
	w.n++
	w.hash = w.chain.next(&w.hash, kind, value)
	var head [160]byte
	b := append(head[:0], lineHash...)
	b = hex.AppendEncode(b, w.hash[:])
	b = append(append(b, lineKind...), kind...)
	b = append(b, lineN...)
	b = strconv.AppendInt(b, w.n, 10)
	b = append(b, lineValue...)
	if _, err := w.w.Write(b); err != nil {
		return err
	}
	if _, err := w.w.Write(value); err != nil {
		return err
	}
	_, err := w.w.WriteString(lineEnd)
	return err
}

// line is one that was read.
type line struct {
	at    int64 // number of the physical line, from 1
	n     int64
	kind  string
	value []byte
	fault string // what is wrong with the line itself
	// before is the hash that this line continues from: the right one as long as no
	// line before it has a fault.
	before digest
}

// reader reads lines and checks what surrounds their values.
type reader struct {
	r     *bufio.Reader
	chain *chain
	hash  digest // as the last line claims
	at, n int64
	any   bool // something that begins as a line of a bundle was read
}

func newReader(r io.Reader) *reader {
	return &reader{r: bufio.NewReaderSize(r, 256<<10), chain: newChain(), hash: firstHash()}
}

var errLineTooLong = fmt.Errorf("a line is longer than %d bytes", maxLine)

// next reads one line; io.EOF after the last. The line's own faults are in it.
// Its value stands in room, which must not be used for anything else before the
// line is done with, or in memory of its own if it is too long for it.
func (r *reader) next(room *arena) (line, error) {
	raw, err := r.raw(room)
	if err != nil && (!errors.Is(err, io.EOF) || len(raw) == 0) {
		return line{}, err
	}
	r.at++
	r.any = r.any || bytes.HasPrefix(raw, []byte(lineHash))
	l := line{at: r.at, before: r.hash}
	claimed, ok := parseLine(raw, &l)
	if !ok {
		l.fault = "is no line of a bundle"
		if !bytes.HasSuffix(raw, []byte(lineEnd)) {
			l.fault = "ends before its end"
		}
		l.kind, l.value = "", nil
		r.n++ // most likely the next one, with a changed byte around its value
		return l, nil
	}
	right := r.chain.next(&r.hash, l.kind, l.value) == claimed
	switch {
	case l.n != r.n+1 && !right:
		l.fault = fmt.Sprintf("has number %d after %d: lines are missing, added or in another order", l.n, r.n)
	case l.n != r.n+1:
		l.fault = fmt.Sprintf("has number %d after %d", l.n, r.n)
	case !right:
		l.fault = "has another hash: it was changed, or the line before it"
	}
	r.hash, r.n = claimed, l.n
	return l, nil
}

// arena is memory for the lines of one batch, used again by a later batch.
type arena struct{ buf []byte }

func (a *arena) clone(b []byte) []byte {
	if len(b) > cap(a.buf)-len(a.buf) {
		return bytes.Clone(b)
	}
	from := len(a.buf)
	a.buf = append(a.buf, b...)
	return a.buf[from:len(a.buf):len(a.buf)]
}

// raw reads up to and with the next line feed.
func (r *reader) raw(room *arena) ([]byte, error) {
	var out []byte
	for {
		part, err := r.r.ReadSlice('\n')
		if err == nil && out == nil {
			return room.clone(part), nil
		}
		out = append(out, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
		if len(out) > maxLine {
			return nil, errLineTooLong
		}
	}
}

// parseLine takes a line apart; false if a byte around its value is not as it
// must be.
func parseLine(raw []byte, l *line) (claimed digest, ok bool) {
	rest, ok := bytes.CutPrefix(raw, []byte(lineHash))
	if !ok || len(rest) < 2*sha256.Size {
		return claimed, false
	}
	text := rest[:2*sha256.Size]
	if !lowerHex(text) {
		return claimed, false
	}
	if _, err := hex.Decode(claimed[:], text); err != nil {
		return claimed, false
	}
	if rest, ok = bytes.CutPrefix(rest[2*sha256.Size:], []byte(lineKind)); !ok {
		return claimed, false
	}
	kind, rest, ok := bytes.Cut(rest, []byte(lineN))
	if !ok {
		return claimed, false
	}
	number, rest, ok := bytes.Cut(rest, []byte(lineValue))
	if !ok {
		return claimed, false
	}
	n, err := strconv.ParseInt(string(number), 10, 64)
	k := kinds[string(kind)]
	if err != nil || n < 1 || number[0] == '0' || number[0] == '+' || k.place == 0 {
		return claimed, false
	}
	value, ok := bytes.CutSuffix(rest, []byte(lineEnd))
	if !ok || len(value) == 0 {
		return claimed, false
	}
	l.n, l.kind, l.value = n, k.name, value
	return claimed, true
}

func lowerHex(text []byte) bool {
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
