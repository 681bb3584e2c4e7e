rule component:
    input:
        sources=str(SOURCES),
    output:
        # the component itself is in the store
        info=str(project.build / "components" / "{component}-{hash}.json"),
    log:
        "logs/component-{component}-{hash}.log",
    priority: 2
    conda:
        "../../envs/build.yaml"
    threads: CORES
    resources:
        mem_mb=8000,
        runtime=60,
    message:
        "Building {wildcards.component}"
    shell:
        "python -m quicbed component {wildcards.component} --jobs {threads} --log {log:q}"


rule certificates:
    input:
        tools=certificate_tools,
    output:
        multiext(str(CERTIFICATES / "{signature}" / "server"), ".pem", ".key"),
        ca=str(CERTIFICATES / "{signature}" / "ca.pem"),
    log:
        f"logs/certificates-{TESTBED}-{{signature}}.log",
    localrule: True
    conda:
        "../../envs/measure.yaml"
    message:
        "Making the server's certificate, {wildcards.signature}"
    shell:
        "python -m quicbed certificates {wildcards.signature} --log {log:q}"


rule measure:
    input:
        builds=builds_of,
        certificates=certificates_of,
        reader=reader_of,
        experiment=str(ROOT / "config/experiments/{experiment}.yaml"),
    output:
        marker=str(RESULTS["own"] / "measured" / TESTBED / "{experiment}.json"),
    log:
        f"logs/measure-{TESTBED}-{{experiment}}.log",
    # the testbed is this machine's, or reached from it, whatever executes the other rules
    localrule: True
    conda:
        "../../envs/measure.yaml"
    threads: CORES
    resources:
        testbed=1,
    params:
        **HOST_SETTINGS,
        scale=project.config.scale,
        seed=project.config.seed,
        gate=project.config.gate.model_dump(),
        study=project.study and project.study.digest,
    message:
        "Measuring {wildcards.experiment} at scale {params.scale}"
    shell:
        "python -m quicbed measure {wildcards.experiment} --marker {output.marker:q} --log {log:q}"
