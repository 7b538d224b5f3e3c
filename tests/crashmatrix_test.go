//go:build matrix

package tests

import (
	"fmt"
	"testing"
)

// timesMost is more often than one life passes any point.
const timesMost = 40

// Every time that a life passes a point, one kill, until there is no such time any more.
func TestMatrixAKillAtEveryTimeOfEveryPoint(t *testing.T) {
	for _, p := range fatalPoints {
		for _, l := range []life{{cloud: true}, {cloud: true, replicas: 2}, {}, {replicas: 2}} {
			t.Run(fmt.Sprintf("%s, %d replicas, cloud %t", p.point, max(l.replicas, 1), l.cloud), func(t *testing.T) {
				t.Parallel()
				matrixDatabases(t, l, func(t *testing.T, database func(*testing.T) []string) {
					for n := 1; n <= timesMost; n++ {
						killed := true
						t.Run(fmt.Sprint(n), func(t *testing.T) {
							each := l
							each.point = fmt.Sprintf("%s:%d", p.point, n)
							killed = each.lived(t, database(t)) > 0
						})
						if !killed || t.Failed() {
							return
						}
					}
				})
			})
		}
	}
}

// Half a dozen kills, one every nth time that the point is reached, while six runs are on their way.
func TestMatrixAStormOfKillsAtEveryPoint(t *testing.T) {
	for _, p := range fatalPoints {
		for _, n := range []int{1, 4} {
			for _, l := range []life{{cloud: true}, {cloud: true, replicas: 2}} {
				l.point, l.runs, l.storm = fmt.Sprintf("%s:%d", p.point, n), 6, 6
				t.Run(fmt.Sprintf("%s, %d replicas", l.point, max(l.replicas, 1)), func(t *testing.T) {
					t.Parallel()
					matrixDatabases(t, l, func(t *testing.T, database func(*testing.T) []string) {
						t.Logf("%d kills", l.lived(t, database(t)))
					})
				})
			}
		}
	}
}

// matrixDatabases runs test on the databases that a life can have: one SQLite file has one process.
func matrixDatabases(t *testing.T, l life, test func(t *testing.T, database func(*testing.T) []string)) {
	t.Helper()
	if l.replicas < 2 {
		t.Run("sqlite", func(t *testing.T) {
			t.Parallel()
			test(t, func(*testing.T) []string { return nil })
		})
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, postgres)
	})
}
