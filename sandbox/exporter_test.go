package sandbox_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// folder is the one that every entry of talk's archive is in.
var folder = strings.ReplaceAll(talk, "-", "")

// archive packs entries as they are given: nothing is checked or cleaned.
func archive(t *testing.T, heads ...*zip.FileHeader) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, head := range heads {
		file, err := w.CreateHeader(head)
		require.NoError(t, err)
		_, err = file.Write([]byte(`{"n":1}`))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return packed.Bytes()
}

func entry(name string) *zip.FileHeader { return &zip.FileHeader{Name: name} }

func TestAnExportIsTrustedOnlyWhenAllOfItWasRead(t *testing.T) {
	link := entry(folder + "/events/event-00001-a.json")
	link.SetMode(0o777 | 1<<27) // fs.ModeSymlink
	event := entry(folder + "/events/event-00000-a.json")
	event.Method = zip.Store
	flipped := archive(t, event)
	flipped[bytes.Index(flipped, []byte(`{"n":1}`))] ^= 1
	cases := map[string]struct {
		conversation sandboxtest.Conversation
		want         error
		text         string
	}{
		"an entry above its folder":          {sandboxtest.Conversation{Zip: archive(t, entry(folder+"/../../etc/passwd"))}, sandbox.ErrHistoryUnsafe, ""},
		"an absolute one":                    {sandboxtest.Conversation{Zip: archive(t, entry("/etc/passwd"))}, sandbox.ErrHistoryUnsafe, ""},
		"one for another system":             {sandboxtest.Conversation{Zip: archive(t, entry(folder+`\..\x`))}, sandbox.ErrHistoryUnsafe, ""},
		"one of another conversation":        {sandboxtest.Conversation{Zip: archive(t, entry(strings.ReplaceAll(another, "-", "")+"/meta.json"))}, sandbox.ErrHistoryUnsafe, ""},
		"a link":                             {sandboxtest.Conversation{Zip: archive(t, link)}, sandbox.ErrHistoryUnsafe, ""},
		"one twice":                          {sandboxtest.Conversation{Zip: archive(t, entry(folder+"/meta.json"), entry(folder+"/meta.json"))}, sandbox.ErrHistoryUnsafe, ""},
		"fewer events than the conversation": {sandboxtest.Conversation{Events: 4, Zip: sandboxtest.Trajectory(talk, 3)}, sandbox.ErrHistoryShort, ""},
		"more events than the conversation":  {sandboxtest.Conversation{Events: 2, Zip: sandboxtest.Trajectory(talk, 3)}, sandbox.ErrHistoryShort, ""},
		"a changed byte":                     {sandboxtest.Conversation{Events: 1, Zip: flipped}, zip.ErrChecksum, ""},
		"no archive":                         {sandboxtest.Conversation{Zip: []byte("Internal Server Error")}, zip.ErrFormat, ""},
		"the end is missing":                 {sandboxtest.Conversation{Events: 3, Short: 9}, sandbox.ErrUnreachable, ""},
		"too large":                          {sandboxtest.Conversation{Events: 3, Claims: 2 << 30}, sandbox.ErrHistoryTooLarge, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				_, box := r.running()
				c.conversation.ID = talk
				r.agent(box.ID).Converse(c.conversation)
				_, err := r.config.Exports.Export(r.Context(), box, "")
				require.ErrorIs(r, err, c.want)
				require.Nil(r, r.box(box.ID).Export, "not trusted")
				require.Empty(r, r.blobs.data, "not stored")
				require.Nil(r, r.exports()[0].TakenAt)
			})
		})
	}
}

func TestAnExportLeavesTheDiskItsFreeSpace(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.agent(box.ID).Converse(sandboxtest.Conversation{ID: talk, Events: 3})
		for free, want := range map[int64]error{
			400 << 20: sandbox.ErrHistoryTooLarge, 512<<20 + 200: sandbox.ErrHistoryTooLarge, 512<<20 + 1<<20: nil,
		} {
			exports, err := sandbox.NewExporter(sandbox.ExporterConfig{
				Store: r.store, Blobs: r.blobs, Staging: t.TempDir(), HTTP: r.agents.Client(), Free: func() (int64, error) { return free, nil },
			})
			require.NoError(r, err)
			_, err = exports.Export(r.Context(), box, "")
			require.ErrorIs(r, err, want)
		}
	})
}

func TestAStoreThatKeepsSomethingElseIsNotBelieved(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.agent(box.ID).Converse(sandboxtest.Conversation{ID: talk, Events: 3})
		r.blobs.change = func(text []byte) []byte { return append(text[:len(text)-1:len(text)-1], 0xff) }
		_, err := r.config.Exports.Export(r.Context(), box, "")
		require.ErrorContains(r, err, "not what was written")
		require.Nil(r, r.box(box.ID).Export)
		r.blobs.change, r.blobs.err = nil, errors.New("bucket is gone")
		_, err = r.config.Exports.Export(r.Context(), box, "")
		require.ErrorContains(r, err, "bucket is gone")
	})
}
