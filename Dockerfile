# A server that takes connections from anywhere and keeps its data in a volume:
#
#   docker build -t courser .
#   docker run -d --name courser -p 8090:8090 -v courser-data:/var/lib/courser -e COURSER_ROOT_PASSWORD=... courser
#   docker exec courser courser ping
#
# COURSER_ROOT_PASSWORD is the password of the user iggy. It counts at the first start only, when the volume is empty.

# The large image has a C compiler, which makes one small part of the package quicker.
FROM python:3.13 AS build
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY src /source/src
RUN pip wheel --no-cache-dir --wheel-dir /wheels "/source[quic]"

FROM python:3.13-slim
# Other systems know the user by its number: Kubernetes, and the owner of a directory that is mounted as the volume.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index /wheels/*.whl \
    && groupadd --gid 10001 courser \
    && useradd --uid 10001 --gid courser --shell /usr/sbin/nologin --home-dir /var/lib/courser --create-home courser

# The name of the root user is not a secret; its password comes from outside.
# hadolint ignore=DL3064
ENV COURSER_TCP_ADDRESS=0.0.0.0:8090 \
    COURSER_HTTP_ADDRESS=0.0.0.0:3000 \
    COURSER_WEBSOCKET_ADDRESS=0.0.0.0:8092 \
    COURSER_QUIC_ADDRESS=0.0.0.0:8080 \
    COURSER_SYSTEM_PATH=/var/lib/courser/local_data \
    COURSER_SYSTEM_LOGGING_FILE_ENABLED=false \
    COURSER_ROOT_USERNAME=iggy \
    PYTHONUNBUFFERED=1

USER 10001:10001
WORKDIR /var/lib/courser
VOLUME ["/var/lib/courser"]
# The binary protocols over TCP, HTTP, WebSocket; QUIC if it is enabled.
EXPOSE 8090 3000 8092 8080/udp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["courser", "ping", "--url", "127.0.0.1:8090", "-o", "jsonl"]
ENTRYPOINT ["courser"]
CMD ["serve"]
