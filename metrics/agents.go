package metrics

import "github.com/prometheus/client_golang/prometheus"

// The values of the labels of customers' agents.
var (
	agentStreams = []string{"stdout", "stderr"}
	agentLeaves  = []string{"rotated", "exited", "client", "shutdown"}
)

type agents struct {
	output  *prometheus.CounterVec
	dropped prometheus.Counter
	readers prometheus.Gauge
	closes  *prometheus.CounterVec
}

func newAgents(r prometheus.Registerer) agents {
	m := agents{
		output:  counter(r, "automation_agent_output_bytes_total", "What the servers of customers printed and is stored.", "stream"),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "automation_agent_output_dropped_bytes_total", Help: "What boxes had lost of it before it could be stored."}),
		readers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "automation_agent_readers", Help: "Who follows the output of such a server here."}),
		closes:  counter(r, "automation_agent_reader_closes_total", "Readers that left, and why.", "reason"),
	}
	r.MustRegister(m.dropped, m.readers)
	start(m.output, agentStreams)
	start(m.closes, agentLeaves)
	return m
}

// AgentCollected counts what was stored of a server's output (session.Config.Collected).
func (m *Metrics) AgentCollected(stdout, stderr, lost int64) {
	m.agents.output.WithLabelValues("stdout").Add(float64(stdout))
	m.agents.output.WithLabelValues("stderr").Add(float64(stderr))
	m.agents.dropped.Add(float64(lost))
}

// AgentReader counts a reader until it has left (session.Config.Reads).
func (m *Metrics) AgentReader() (left func(why string)) {
	m.agents.readers.Inc()
	return func(why string) {
		m.agents.readers.Dec()
		m.agents.closes.WithLabelValues(known(why, agentLeaves)).Inc()
	}
}
