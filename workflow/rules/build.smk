rule sources:
    input:
        locks=[str(ROOT / workspace / "Cargo.lock") for workspace in kit.WORKSPACES],
    output:
        listing=str(SOURCES),
    log:
        "logs/sources.log",
    # nodes of a cluster often have no way to the package registries
    localrule: True
    conda:
        "../../envs/build.yaml"
    message:
        "Fetching and checking all third-party sources"
    shell:
        "python -m quicbed sources --log {log:q}"


rule build:
    input:
        sources=str(SOURCES),
        base=stock_build,
    output:
        # beside the link to the build, which Snakemake therefore never deletes
        info=str(project.build / "{library}-{flavour}-{hash}.json"),
    log:
        "logs/build-{library}-{flavour}-{hash}.log",
    benchmark:
        "logs/build-{library}-{flavour}-{hash}.tsv"
    # before anything is measured, so that what is measured tells when all will be done
    priority: 2
    conda:
        "../../envs/build.yaml"
    threads: CORES
    resources:
        mem_mb=8000,
        runtime=120,
    message:
        "Building {wildcards.library}, flavour {wildcards.flavour}"
    shell:
        "python -m quicbed build {wildcards.library} {wildcards.flavour} --jobs {threads} --log {log:q}"
        " --id {wildcards.hash} --leave-out"


if HOSTED:

    rule host_builds:
        input:
            sources=str(SOURCES),
        output:
            info=HOSTED,
        log:
            f"logs/host-builds-{TESTBED}.log",
        priority: 2
        localrule: True
        conda:
            "../../envs/host-builds.yaml"
        threads: CORES
        resources:
            testbed=1,
        message:
            "Building on the hosts of testbed {TESTBED}"
        shell:
            "python -m quicbed host-builds --log {log:q}"
