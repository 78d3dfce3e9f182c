# The server alone in an empty image: nothing else to patch.
FROM golang:1.26.9@sha256:f1f0bcc2c524a3ced375fcb4d1ecb7aa371aa7070e112599aaca45cc02d0101b AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /server ./cmd/server

FROM scratch
COPY --from=build /server /server
USER 65532:65532
EXPOSE 8080 8443 9090
# ready, not only alive: what `docker compose up --wait` waits for
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --start-interval=500ms --retries=3 CMD ["/server", "healthcheck"]
ENTRYPOINT ["/server"]
CMD ["serve"]
