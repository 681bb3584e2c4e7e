rule certificates:
    output:
        multiext(str(CERTIFICATES / "server"), ".pem", ".key"),
        ca=str(CERTIFICATES / "ca.pem"),
    log:
        f"logs/certificates-{TESTBED}.log",
    conda:
        "../../envs/measure.yaml"
    message:
        "Making the server's certificate"
    shell:
        "python -m quicbed certificates > {log} 2>&1"


rule measure:
    input:
        builds=builds_of,
        certificates=ancient(str(CERTIFICATES / "server.pem")),
        experiment=str(ROOT / "config/experiments/{experiment}.yaml"),
    output:
        marker=str(RESULTS["own"] / "measured" / TESTBED / "{experiment}.json"),
    log:
        f"logs/measure-{TESTBED}-{{experiment}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores or 1
    resources:
        testbed=1,
    params:
        scale=project.config.scale,
        seed=project.config.seed,
        gate=project.config.gate.model_dump(),
    message:
        "Measuring {wildcards.experiment} at scale {params.scale}"
    shell:
        "python -m quicbed measure {wildcards.experiment} --marker {output.marker} --log {log}"
