# syntax=docker/dockerfile:1
# Four static programs in an image without shell or package manager. Build:
#   docker build --build-arg VERSION=v0.1.0 -t missionweave .
ARG GO_VERSION=1.26

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=
ENV CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH}
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/missionweave/server/internal/cli.buildVersion=${VERSION}" -o /out/ ./cmd/...
# The folders are made here because the image has nothing to make them with; a new
# volume mounted on one takes over its owner.
RUN mkdir -p /out/data /out/identity

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/mw /out/authority /out/registry /out/authz /
COPY --from=build --chown=nonroot:nonroot --chmod=0700 /out/data /data
COPY --from=build --chown=nonroot:nonroot --chmod=0700 /out/identity /identity
USER nonroot:nonroot
ENV MW_DATA_DIR=/data MW_LOG_FORMAT=json
VOLUME ["/data", "/identity"]
EXPOSE 8420 8430 8440
# Overridden per service in docker-compose.yml, where the management port differs.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=6 CMD ["/authority", "healthcheck"]
ENTRYPOINT []
CMD ["/authority"]
