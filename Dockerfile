# Inference Store: one image, every service. `make image` builds it with docker, podman or buildah.
# BASE has Python 3.11 to 3.14 as `python3`, with venv; `docker buildx imagetools inspect NAME:TAG` says a newer digest.
ARG BASE=docker.io/library/python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

FROM ${BASE} AS build
WORKDIR /build
COPY requirements.lock requirements-build.lock ./
# What builds our own wheel is in an environment of its own, of which nothing is kept.
RUN for name in inference-store build; do python3 -m venv /opt/$name || exit; done && \
    /opt/inference-store/bin/pip install --quiet --disable-pip-version-check --no-cache-dir \
        --no-compile --only-binary :all: --require-hashes -r requirements.lock && \
    /opt/build/bin/pip install --quiet --disable-pip-version-check --no-cache-dir \
        --only-binary :all: --require-hashes -r requirements-build.lock
COPY pyproject.toml setup.py README.md CHANGELOG.md LICENSE compose.yaml compose.proxy.yaml ./
COPY client client
COPY docs docs
COPY examples examples
COPY helm helm
COPY migrations migrations
COPY services services
# Bytecode is made here, and believed whatever its file's time: nothing writes at run time.
RUN /opt/build/bin/pip wheel --quiet --disable-pip-version-check --no-cache-dir \
        --no-deps --no-build-isolation --wheel-dir dist . ./client && \
    /opt/inference-store/bin/pip install --quiet --disable-pip-version-check --no-cache-dir \
        --no-compile --no-deps dist/*.whl && \
    /opt/inference-store/bin/pip uninstall --quiet --yes setuptools pip && \
    rm -f /opt/inference-store/bin/[Aa]ctivate* && \
    find /opt/inference-store/lib -type d -name tests -prune -exec rm -r {} + && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/inference-store/lib

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Inference Store" \
      org.opencontainers.image.description="The open store for what models really did in production." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The base's own installers go: what runs here installs nothing.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/lib/python3.*/ensurepip \
        /usr/local/lib/python3.*/site-packages/* /usr/lib/python3.*/ensurepip /usr/lib/python3/dist-packages/* \
        /usr/share/python-wheels && \
    echo 'inference-store:x:10001:10001::/nonexistent:/usr/sbin/nologin' >>/etc/passwd && \
    echo 'inference-store:x:10001:' >>/etc/group
COPY --from=build /opt/inference-store /opt/inference-store
ENV PATH=/opt/inference-store/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001
EXPOSE 8080 8090 8091 9101 9102 9103 9104
ENTRYPOINT ["inference-store"]
