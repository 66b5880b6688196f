package httpkit

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/missionweave/server/internal/protocol"
)

// PeerResolver names the peer of a request. A forwarding header is believed
// only where the connection comes from a trusted proxy: anyone may write it.
type PeerResolver struct {
	Trusted []netip.Prefix
}

// Peer returns the address without port; IPv6 peers count as their /64, which
// is what one peer can easily vary.
func (p PeerResolver) Peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return "local" // a unix socket or an in-memory listener has no address
	}
	if p.trusts(addr) {
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for i := len(hops) - 1; i >= 0; i-- {
			hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
			if err != nil {
				break
			}
			addr = hop
			if !p.trusts(hop) {
				break
			}
		}
	}
	return peerName(addr)
}

func (p PeerResolver) trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, prefix := range p.Trusted {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

func peerName(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() {
		return addr.String()
	}
	prefix, err := addr.Prefix(64)
	if err != nil {
		return addr.String()
	}
	return prefix.String()
}

// PeerLimiter is a token bucket per peer. Its memory is bounded: past MaxPeers
// the peer that was quiet longest is forgotten. A nil PeerLimiter allows all.
type PeerLimiter struct {
	policy string
	rate   rate.Limit
	burst  int
	max    int
	now    func() time.Time

	mu    sync.Mutex
	peers map[string]*list.Element
	order *list.List // front = most recently seen
}

type peerBucket struct {
	peer   string
	bucket *rate.Limiter
}

// MaxPeers bounds the memory of a PeerLimiter.
const MaxPeers = 16384

// NewPeerLimiter allows perMinute calls of a peer on average and burst at once.
// policy is the policyName of the refusal. perMinute <= 0 returns nil: no limit.
func NewPeerLimiter(policy string, perMinute float64, burst int, now func() time.Time) *PeerLimiter {
	if perMinute <= 0 {
		return nil
	}
	if now == nil {
		now = time.Now
	}
	return &PeerLimiter{
		policy: policy, rate: rate.Limit(perMinute / 60), burst: max(burst, 1), max: MaxPeers, now: now,
		peers: map[string]*list.Element{}, order: list.New(),
	}
}

// Check takes one token of the peer, or answers RATE_LIMITED with the time
// after which one is there.
func (l *PeerLimiter) Check(peer string) error {
	if l == nil {
		return nil
	}
	now := l.now()
	reservation := l.bucket(peer).ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	reservation.CancelAt(now)
	return protocol.NewError(protocol.CodeRateLimited, l.policy).
		WithDetail("policyName", l.policy).WithDetail("limit", int64(float64(l.rate)*60+0.5)).
		WithRetryAfter(max(wait.Milliseconds(), 1))
}

func (l *PeerLimiter) bucket(peer string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if el, ok := l.peers[peer]; ok {
		l.order.MoveToFront(el)
		return el.Value.(*peerBucket).bucket
	}
	if len(l.peers) >= l.max {
		oldest := l.order.Back()
		delete(l.peers, oldest.Value.(*peerBucket).peer)
		l.order.Remove(oldest)
	}
	b := &peerBucket{peer: peer, bucket: rate.NewLimiter(l.rate, l.burst)}
	l.peers[peer] = l.order.PushFront(b)
	return b.bucket
}
