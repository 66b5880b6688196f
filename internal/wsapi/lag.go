package wsapi

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// lag tells how far the subscriptions of this process are behind their Groups. A
// series for each would grow without bound and its labels would be ids, so the
// followers are counted by how far they are behind, and only the worst have
// series of their own, named by rank.
type lag struct{ server *Server }

// worstFollowers is how many followers have a series of their own.
const worstFollowers = 10

var (
	lagBuckets = []float64{0, 1, 10, 100, 256, 1000, 10_000, 100_000}

	descLag = prometheus.NewDesc("mw_follower_lag_events",
		"Subscriptions by how many Events they are behind the head of their Group: not sent yet, or not acknowledged.", []string{"what"}, nil)
	descWorst = prometheus.NewDesc("mw_follower_lag_worst_events",
		"How many Events the subscriptions that are furthest behind have not been sent or have not acknowledged, by rank.", []string{"what", "rank"}, nil)
)

func newLag(s *Server) *lag { return &lag{s} }

// Describe implements prometheus.Collector.
func (l *lag) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLag
	ch <- descWorst
}

// Collect implements prometheus.Collector.
func (l *lag) Collect(ch chan<- prometheus.Metric) {
	unsent, unacknowledged := l.server.lags()
	for what, lags := range map[string][]int64{"sent": unsent, "acknowledged": unacknowledged} {
		buckets, sum := map[float64]uint64{}, 0.0
		for _, bound := range lagBuckets {
			buckets[bound] = 0
		}
		for _, n := range lags {
			sum += float64(n)
			for _, bound := range lagBuckets {
				if float64(n) <= bound {
					buckets[bound]++
				}
			}
		}
		ch <- prometheus.MustNewConstHistogram(descLag, uint64(len(lags)), sum, buckets, what)
		slices.SortFunc(lags, func(a, b int64) int { return cmp.Compare(b, a) })
		for rank, n := range lags[:min(len(lags), worstFollowers)] {
			if n > 0 {
				ch <- prometheus.MustNewConstMetric(descWorst, prometheus.GaugeValue, float64(n), what, ranks[rank])
			}
		}
	}
}

var ranks = [worstFollowers]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}

// lags is how far each subscription is behind.
func (s *Server) lags() (unsent, unacknowledged []int64) {
	s.followersMu.Lock()
	followers := make([]*subscription, 0, len(s.followers))
	for sub := range s.followers {
		followers = append(followers, sub)
	}
	s.followersMu.Unlock()
	heads := map[string]int64{}
	for _, sub := range followers {
		head, ok := heads[sub.groupID]
		if !ok {
			head = s.Hub.Head(sub.groupID)
			heads[sub.groupID] = head
		}
		unsent = append(unsent, max(0, head-sub.out.reached(sub.lane)))
		unacknowledged = append(unacknowledged, max(0, head-sub.acknowledged.Load()))
	}
	return unsent, unacknowledged
}

func (s *Server) followed(sub *subscription) {
	s.followersMu.Lock()
	defer s.followersMu.Unlock()
	s.followers[sub] = struct{}{}
}

func (s *Server) unfollowed(sub *subscription) {
	s.followersMu.Lock()
	defer s.followersMu.Unlock()
	delete(s.followers, sub)
}
