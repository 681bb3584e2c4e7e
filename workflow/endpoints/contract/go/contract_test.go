package contract

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// spelled tells content by its definition, independent of the buffer.
func spelled(offset, length int) []byte {
	var text []byte
	for record := offset / recordSize; len(text) < length+recordSize; record++ {
		text = fmt.Appendf(text, "quicbed%08x\n", record%4093)
	}
	return text[offset%recordSize:][:length]
}

func TestContentFollowsTheDefinitionAtAnyOffset(t *testing.T) {
	if Period != 65488 {
		t.Fatalf("the period is %d", Period)
	}
	for _, offset := range []int{0, 1, 15, 16, 4097, Period - 1, Period, 5*Period + 77} {
		if !bytes.Equal(Content(uint64(offset), 70000), spelled(offset, Period)) {
			t.Errorf("content differs at offset %d", offset)
		}
	}
	if got := string(Content(Period-1, 9)); got != "\nquicbed0" {
		t.Errorf("content at the end of the period is %q", got)
	}
}

func check(data []byte, expected uint64, chunk int) error {
	checker := NewChecker(expected)
	for piece := range slices.Chunk(data, chunk) {
		checker.Receive(piece)
	}
	return checker.Verdict()
}

func TestIntactContentPassesInChunksOfAnySize(t *testing.T) {
	data := spelled(0, 200000)
	for _, chunk := range []int{1, 7, 1350, 65488, 100000, 200000} {
		if err := check(data, 200000, chunk); err != nil {
			t.Errorf("chunks of %d: %v", chunk, err)
		}
	}
}

func TestWrongContentIsFound(t *testing.T) {
	for _, position := range []int{0, 1, 65487, 65488, 131000} {
		data := spelled(0, 131001)
		data[position] ^= 1
		want := fmt.Sprintf("content differs at byte %d", position)
		if err := check(data, 131001, 1350); err == nil || err.Error() != want {
			t.Errorf("byte %d: %v", position, err)
		}
	}
	for _, length := range []int{999, 1001} {
		want := fmt.Sprintf("received %d bytes of content instead of 1000", length)
		if err := check(spelled(0, length), 1000, 100); err == nil || err.Error() != want {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

func TestRequests(t *testing.T) {
	for _, text := range []string{"GET /1024", "GET /1024\n", "GET /1024\r\n", "GET /1024\r"} {
		if body, err := ParseRequest([]byte(text)); body.Length != 1024 || body.isFile || err != nil {
			t.Errorf("%q: %d, %v", text, body.Length, err)
		}
	}
	for _, bytes := range []uint64{0, 1, 1 << 33, 1<<64 - 1} {
		request := FormatRequest(bytes)
		if body, err := ParseRequest(request); body.Length != bytes || err != nil || len(request) > MaxRequest {
			t.Errorf("%q: %d, %v", request, body.Length, err)
		}
	}
	for _, text := range []string{
		"", "GET /", "GET /\r\n", "GET /1x\r\n", "GET /+1\r\n", "GET / 1\r\n", "GET /1 HTTP/1.1\r\n", "POST /1\r\n",
		"get /1\r\n", "GET /18446744073709551616\r\n", "GET /1\r\n\r\n",
	} {
		if _, err := ParseRequest([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestFilesAreFoundByNameAndBeforeSizes(t *testing.T) {
	directory := t.TempDir()
	large := bytes.Repeat([]byte{7}, Period+3)
	for name, content := range map[string][]byte{"a-file.bin": large, "31337": []byte("elite"), "empty": nil} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(directory, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := serveFiles(directory); err != nil {
		t.Fatal(err)
	}
	defer func() { files = nil }()
	body, err := ParseRequest([]byte("GET /a-file.bin\r\n"))
	if err != nil || !bytes.Equal(append(slices.Clone(body.At(0)), body.At(Period)...), large) {
		t.Errorf("a file: %d bytes, %v", body.Length, err)
	}
	if body, err := ParseRequest([]byte("GET /31337")); err != nil || string(body.At(0)) != "elite" {
		t.Errorf("a file whose name is a size: %v", err)
	}
	if body, err := ParseRequest([]byte("GET /empty")); err != nil || body.Length != 0 {
		t.Errorf("an empty file: %d, %v", body.Length, err)
	}
	for _, missing := range []string{"GET /below", "GET /no-file", "GET /below/../a-file.bin"} {
		if _, err := ParseRequest([]byte(missing)); err == nil || !strings.Contains(err.Error(), "--www") {
			t.Errorf("%q: %v", missing, err)
		}
	}
}

func TestWhatIsSavedIsInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a-file.bin")
	options, err := ParseClient(append(slices.Clone(client[:6]), "--save", path), about())
	if err != nil || string(options.Request()) != "GET /a-file.bin\r\n" {
		t.Fatalf("%q, %v", options.Request(), err)
	}
	data := bytes.Repeat([]byte("any\x00thing"), savedAtOnce/4)
	checker := options.Checker()
	for piece := range slices.Chunk(data, 1350) {
		checker.Receive(piece)
	}
	if err := checker.Verdict(); err != nil || checker.Requested() != uint64(len(data)) {
		t.Errorf("%d bytes, %v", checker.Requested(), err)
	}
	if saved, err := os.ReadFile(path); err != nil || !bytes.Equal(saved, data) {
		t.Errorf("%d bytes in the file, %v", len(saved), err)
	}
	if err := NewSaver(filepath.Join(path, "file")).Verdict(); err == nil {
		t.Error("a file that cannot be made was saved")
	}
	for _, wrong := range []string{"..", "a b"} {
		if _, err := ParseClient(append(slices.Clone(client[:6]), "--save", wrong), about()); err == nil {
			t.Errorf("--save %q was taken", wrong)
		}
	}
	if _, err := ParseClient(append(slices.Clone(client), "--save", path), about()); err == nil {
		t.Error("--bytes was taken with --save")
	}
}

func TestAlgorithmsAreThoseOfTheTable(t *testing.T) {
	file, err := os.Open("../../../crypto/algorithms.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]Algorithm{}
	for _, row := range rows[1:] {
		codePoint, err := strconv.ParseUint(row[4], 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		table[row[0]+" "+row[1]] = Algorithm{row[1], row[3], uint16(codePoint)}
	}
	for kind, algorithms := range map[string][]Algorithm{"group": Groups, "signature": Signatures} {
		for _, algorithm := range algorithms {
			if table[kind+" "+algorithm.Name] != algorithm {
				t.Errorf("%s %v is %v in the table", kind, algorithm, table[kind+" "+algorithm.Name])
			}
		}
	}
}

func about() *Description {
	made := Describe("quic-go", "1", "crypto/tls 1", false)
	made.CongestionControls = []string{"reno"}
	return made
}

var client = []string{"--connect", "127.0.0.1:1", "--server-name", "server", "--ca", "ca.pem", "--bytes", "9"}

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	options, err := ParseClient(client, about())
	if err != nil {
		t.Fatal(err)
	}
	if options.Bytes != 9 || options.Connections != 1 || options.Timeout != time.Minute || !options.GSO || !options.GRO {
		t.Errorf("%+v", options)
	}
	if options.CongestionControl != "reno" || options.UDPPayload != 1472 || options.InitialSize != 1200 {
		t.Errorf("%+v", options)
	}
}

func TestWrongCommandLinesNameTheOption(t *testing.T) {
	for more, want := range map[string]string{
		"--frobnicate 1":                         "unknown option --frobnicate",
		"--frobnicate":                           "unknown option --frobnicate",
		"stray":                                  `unexpected argument "stray"`,
		"--window":                               "--window: a value is missing",
		"--cipher rot13":                         `--cipher: not one of aes-128-gcm, aes-256-gcm, chacha20-poly1305: "rot13"`,
		"--bytes -1":                             `--bytes: not a whole number from 0 to 18446744073709551615: "-1"`,
		"--timeout 0":                            `--timeout: not a positive number of seconds: "0"`,
		"--timeout NaN":                          `--timeout: not a positive number of seconds: "NaN"`,
		"--gso maybe":                            `--gso: not one of on, off, paced: "maybe"`,
		"--connect here":                         `--connect: not IP:PORT: "here"`,
		"--initial-size 1300 --udp-payload 1252": "--initial-size: 1300 is more than --udp-payload 1252",
	} {
		_, err := ParseClient(slices.Concat(client, strings.Fields(more)), about())
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", more, err)
		}
	}
	for at := 0; at < len(client); at += 2 {
		_, err := ParseClient(slices.Concat(client[:at], client[at+2:]), about())
		if err == nil || err.Error() != client[at]+" is missing" {
			t.Errorf("without %s: %v", client[at], err)
		}
	}
	if _, err := ParseServer([]string{"--describe"}, about()); !errors.Is(err, ErrDescribe) {
		t.Error(err)
	}
}

func TestABuildSaysWhatItCannotDo(t *testing.T) {
	for more, named := range map[string]string{
		"--aead noop": "--aead noop", "--aead noenc": "packet protection", "--header-protection off": "--header-protection",
		"--group x448": "x448", "--signature falcon-512": "falcon-512", "--congestion-control bbr": "bbr",
		"--pacing off": "--pacing off", "--gso paced": "--gso paced",
	} {
		options, err := ParseClient(slices.Concat(client, strings.Fields(more)), about())
		if err != nil {
			t.Fatal(err)
		}
		if why := about().Unsupported(&options.Common); !strings.Contains(why, named) {
			t.Errorf("%s: %q", more, why)
		}
	}
}

func TestEventsAreLinesWithNullForWhatIsUnknown(t *testing.T) {
	var out bytes.Buffer
	events := NewEvents(&out)
	events.ClientConnection(&ClientConnection{Connection: Connection{OK: true}})
	failed := &ServerConnection{}
	failed.Fail("why")
	events.ServerConnection(failed)
	events.End()
	events.ServerConnection(failed)
	var seen []map[string]any
	for line := range strings.Lines(out.String()) {
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, event)
	}
	if len(seen) != 3 || seen[2]["event"] != "end" {
		t.Fatalf("nothing comes after the end: %v", seen)
	}
	if value, given := seen[0]["t_client_hello"]; value != nil || !given {
		t.Errorf("t_client_hello is %v", value)
	}
	if seen[1]["error"] != "why" || seen[1]["index"] != 0.0 || seen[1]["event"] != "connection" {
		t.Errorf("%v", seen[1])
	}
	if seen[2]["connections"] != 2.0 || seen[2]["failed"] != 1.0 || seen[2]["max_rss_bytes"].(float64) <= 0 {
		t.Errorf("%v", seen[2])
	}
}
