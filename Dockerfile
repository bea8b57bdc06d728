# Two images. `operator`: the operator and the sidecar, without torch. `node`: the official vLLM image with the plugin.
#   docker build --target operator .      docker build --target node .
# Any base with Python 3.11 to 3.13 and its venv module does for `operator`; tests/images builds it on a plain Debian.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim
# The tag is the vLLM of uv.lock; tests/images compares them.
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.26.0

FROM ${PYTHON_IMAGE} AS sources
ARG UV_VERSION=0.13.9
# Where packages come from; build arguments of this stage are in no image that is shipped.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
ENV UV_PYTHON_DOWNLOADS=never UV_PYTHON=python3 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 UV_SYSTEM_CERTS=1
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"
WORKDIR /opt/retire
COPY pyproject.toml uv.lock ./
COPY node/pyproject.toml node/
COPY operator/pyproject.toml operator/

FROM sources AS build
# The locked dependencies first: they change less often than the sources.
# The Kubernetes client ships every model twice; its asyncio half (a third of the image) is not used.
RUN /opt/uv/bin/uv sync --frozen --no-dev --package retire-operator --no-install-workspace \
 && rm -r .venv/lib/python3*/site-packages/kubernetes/aio
COPY node/retire node/retire
COPY operator/retire_operator operator/retire_operator
RUN /opt/uv/bin/uv sync --frozen --no-dev --package retire-operator --no-editable \
 && rm -f .venv/.lock

FROM ${PYTHON_IMAGE} AS operator
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="retire-operator" \
      org.opencontainers.image.description="Operator of ServingScopes, and the sidecar of each node" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/retire/.venv /opt/retire/.venv
ENV PATH=/opt/retire/.venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT []
CMD ["python", "-m", "retire_operator"]

# What the node adds to the vLLM image: our wheel, and the versions its light dependencies are locked to.
FROM sources AS wheel
COPY node/retire node/retire
RUN /opt/uv/bin/uv build --wheel --package retire --out-dir /wheels \
 && /opt/uv/bin/uv export --frozen --no-dev --no-hashes --no-emit-workspace --package retire --extra sidecar --output-file /wheels/constraints.txt

FROM ${VLLM_IMAGE} AS node
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG PIP_INDEX_URL
LABEL org.opencontainers.image.title="retire-node" \
      org.opencontainers.image.description="vLLM with the plugin of Retire" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 0:0
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=scripts/images_node.py,target=/opt/images_node.py \
    python3 /opt/images_node.py /wheels \
 && groupadd --gid 65532 retire \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /cache --shell /usr/sbin/nologin retire
USER 65532:65532
ENTRYPOINT []
CMD ["python3", "-m", "retire.engine.serve", "--help"]
