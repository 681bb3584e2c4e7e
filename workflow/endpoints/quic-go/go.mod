module quicbed/quic-go

go 1.26.0

require (
	// The library under test: the first module required gives its name and version.
	github.com/quic-go/quic-go v0.65.0
	golang.org/x/net v0.56.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

// What endpoints in Go share, of this repository. Without a dot in its name, `go mod verify` would fail.
require quicbed.internal/contract v0.0.0

replace quicbed.internal/contract => ../contract/go
