# The only door: everything else is called from here.

GOLANGCI = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: build image test bench lint generate

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/automation ./cmd/automation
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/agentserver ./cmd/agentserver

# An image of the static agent server for boxes of backend docker, imported without any registry.
image: build
	tar --create --directory bin agentserver | docker import --change 'ENTRYPOINT ["/agentserver"]' - automation-agentserver:latest

test:
	tests/run.sh

bench:
	tests/bench.sh

lint:
	$(GOLANGCI) run ./...
	$(GOLANGCI) fmt --diff

generate:
	go generate ./...
