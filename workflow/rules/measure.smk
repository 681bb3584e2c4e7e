rule certificates:
    output:
        multiext(str(CERTIFICATES / "server"), ".pem", ".key"),
        ca=str(CERTIFICATES / "ca.pem"),
    message:
        "Making the certificates of testbed {TESTBED}"
    shell:
        "{QUICBED} certificates"


def builds_of(wildcards):
    """build.json of every build that an experiment measures."""
    return [str(BUILDS[key] / "build.json") for key in builds_needed(project, [wildcards.experiment])]


rule measure:
    input:
        builds=builds_of,
        certificates=ancient(str(CERTIFICATES / "server.pem")),
        experiment=str(ROOT / "config/experiments/{experiment}.yaml"),
    output:
        marker=str(project.artifacts / "measured" / TESTBED / "{experiment}.json"),
    threads: workflow.cores or 1
    resources:
        testbed=1,
    params:
        scale=project.config.scale,
        seed=project.config.seed,
        gate=project.config.gate.model_dump(),
    message:
        "Measuring {wildcards.experiment} at scale {params.scale} on testbed {TESTBED}"
    shell:
        "{QUICBED} measure {wildcards.experiment} --marker {output.marker}"
