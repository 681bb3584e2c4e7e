rule sources:
    input:
        lock=str(ROOT / "workflow/sources/Cargo.lock"),
    output:
        listing=str(SOURCES),
    log:
        "logs/sources.log",
    resources:
        network=1,
    message:
        "Fetching and checking all third-party sources"
    shell:
        "{QUICBED} sources --log {log}"


def stock_build(wildcards):
    """nginx, curl and OpenSSL are built once; the noop flavour adds a provider to that build."""
    library = project.libraries[wildcards.library]
    if library.recipe == "tcp-tls" and wildcards.flavour != "stock":
        return [str(builds.build_directory(project, wildcards.library, "stock") / "build.json")]
    return []


rule build:
    input:
        sources=ancient(str(SOURCES)),
        base=lambda wildcards: stock_build(wildcards),
    output:
        info=str(project.build / "{library}-{flavour}-{hash}" / "build.json"),
    log:
        "logs/build-{library}-{flavour}-{hash}.log",
    benchmark:
        "logs/build-{library}-{flavour}-{hash}.tsv"
    threads: workflow.cores or 1
    message:
        "Building {wildcards.library}, flavour {wildcards.flavour}"
    shell:
        "{QUICBED} build {wildcards.library} {wildcards.flavour} --jobs {threads} --log {log}"
