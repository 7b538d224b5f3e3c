# The static binary alone: no shell, no package, a user without rights. `make build` comes first.
FROM scratch
COPY bin/automation /automation
# A new folder belongs to whom its first file does, and a volume takes that over.
COPY --chown=65532:65532 LICENSE /data/LICENSE
USER 65532:65532
ENV AUTOMATION_DATA_DIR=/data/automation
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["/automation", "healthcheck", "ready"]
ENTRYPOINT ["/automation"]
CMD ["serve"]
