# The client: `loadstone` as the entry point, for measuring, simulating and reports. Engines have images of their own.
#
#     docker build -t loadstone .
#     docker run --rm --network host -v "$PWD/runs:/home/loadstone/runs" loadstone bench http://localhost:8000 --concurrency 8
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir --prefix=/installed -c constraints.txt ".[gpu,images,sql,tokenizers]"

FROM python:3.13-slim-bookworm
COPY --from=build /installed /usr/local
RUN useradd --create-home --uid 1000 loadstone && install -d -o loadstone /home/loadstone/runs
USER 1000
WORKDIR /home/loadstone
ENTRYPOINT ["loadstone"]
CMD ["--help"]
