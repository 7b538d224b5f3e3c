package sandbox

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Errors of an archive that is not taken for the history it should be.
var (
	// ErrHistoryTooLarge means that a history is larger than what is kept, or than what there is room for.
	ErrHistoryTooLarge = errors.New("the history is too large to be exported")
	// ErrHistoryUnsafe means that an archive has an entry which could be unpacked outside its folder.
	ErrHistoryUnsafe = errors.New("the archive has an entry that leads out of it")
	// ErrHistoryShort means that an archive has not the events that the conversation has.
	ErrHistoryShort = errors.New("the archive has not all events of the conversation")
)

// unpackedMost bounds what the entries of an archive may be together when unpacked: small archives can hold anything.
const unpackedMost = 16 << 30

// checkTrajectory reads every byte of a conversation's archive, which compares the checksums, and returns how many events are
// in it. Entries are plain files and folders below one folder named as the conversation is.
func checkTrajectory(ctx context.Context, archive *zip.Reader, conversationID string) (events int, err error) {
	folder := strings.ToLower(strings.ReplaceAll(conversationID, "-", ""))
	seen := make(map[string]bool, len(archive.File))
	left := int64(unpackedMost)
	for _, entry := range archive.File {
		name := strings.TrimSuffix(entry.Name, "/")
		top, _, _ := strings.Cut(name, "/")
		switch {
		case !fs.ValidPath(name) || strings.ContainsAny(name, "\\\x00") || top != folder:
			return 0, fmt.Errorf("%w: %q", ErrHistoryUnsafe, clip(entry.Name, 200))
		case seen[name]:
			return 0, fmt.Errorf("%w: %q is there twice", ErrHistoryUnsafe, clip(name, 200))
		}
		seen[name] = true
		if strings.HasSuffix(entry.Name, "/") {
			continue
		}
		if !entry.Mode().IsRegular() {
			return 0, fmt.Errorf("%w: %q is no plain file", ErrHistoryUnsafe, clip(name, 200))
		}
		n, err := readEntry(ctx, entry, left)
		if err != nil {
			return 0, err
		}
		left -= n
		if isEvent(strings.TrimPrefix(name, folder+"/")) {
			events++
		}
	}
	return events, nil
}

// readEntry reads one file of an archive to its end.
func readEntry(ctx context.Context, entry *zip.File, limit int64) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	file, err := entry.Open()
	if err != nil {
		return 0, fmt.Errorf("entry %q: %w", clip(entry.Name, 200), err)
	}
	defer func() { _ = file.Close() }()
	n, err := io.Copy(io.Discard, io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return n, fmt.Errorf("entry %q: %w", clip(entry.Name, 200), err)
	case n > limit:
		return n, fmt.Errorf("%w: more than %d bytes unpacked", ErrHistoryTooLarge, int64(unpackedMost))
	}
	return n, nil
}

// isEvent reports whether a file of a conversation's folder is one event.
func isEvent(name string) bool {
	folder, file := path.Split(name)
	return folder == "events/" && strings.HasPrefix(file, "event-") && strings.HasSuffix(file, ".json")
}
