package contract

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// maxName is the length of the longest name of a file, as of most file systems (NAME_MAX).
const maxName = 255

// MaxRequest is the length of the longest request accepted: `GET /`, a name, CRLF.
const MaxRequest = 5 + maxName + 2

// files are those of --www by name; nil without it.
var files map[string][]byte

// serveFiles makes the regular files in a directory answers too, as they are now. They must not shrink while they are
// served (mmap(2)).
func serveFiles(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	files = map[string][]byte{}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		if about, err := os.Stat(path); err != nil || !about.Mode().IsRegular() {
			continue
		}
		if files[entry.Name()], err = mapFile(path); err != nil {
			return err
		}
	}
	return nil
}

// mapFile tells a file's content, for as long as the program runs.
func mapFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	about, err := file.Stat()
	if err != nil || about.Size() == 0 { // nothing is what mmap(2) refuses
		return nil, err
	}
	return syscall.Mmap(int(file.Fd()), 0, int(about.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
}

// requestedName is that by which a file which is to be saved is asked for.
func requestedName(path string) (string, error) {
	name := filepath.Base(path)
	odd := strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	if name == "." || name == ".." || name == "/" || len(name) > maxName || odd || !utf8.ValidString(name) {
		return "", errors.New("its name cannot be asked for")
	}
	return name, nil
}

// FormatRequest makes the request of hq-interop for a number of bytes.
func FormatRequest(bytes uint64) []byte {
	return fmt.Appendf(nil, "GET /%d\r\n", bytes)
}

// ParseRequest tells what a complete request asks for; the end of line may be missing. Files go before content of a size
// that is their name.
func ParseRequest(request []byte) (Body, error) {
	line := strings.TrimSuffix(strings.TrimSuffix(string(request), "\n"), "\r")
	digits, found := strings.CutPrefix(line, "GET /")
	if file, isFile := files[digits]; found && isFile {
		return Body{Length: uint64(len(file)), file: file, isFile: true}, nil
	}
	// ParseUint would take a sign
	if found && strings.Trim(digits, "0123456789") == "" {
		if bytes, err := strconv.ParseUint(digits, 10, 64); err == nil {
			return Body{Length: bytes}, nil
		}
	}
	other := ""
	if files != nil {
		other = " nor for a file of --www"
	}
	return Body{}, fmt.Errorf("request is not `GET /<bytes>`%s: %q", other, request[:min(len(request), MaxRequest)])
}
