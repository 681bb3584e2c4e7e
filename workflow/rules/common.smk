# What rules share: names of files, and functions that find the inputs of a rule.
#
# No input that is made here is `ancient`. Where one would be made again, Snakemake 9.27 takes all that comes after it for
# finished, made or not (its issue 4166). So what is older than sources or certificates is made again. That takes
# seconds: builds and runs that are there are kept.


def code_of(command):
    """What a command of quicbed is made from: its modules, and the data that these read."""
    return inputs.of_command(ROOT, command)


def code_of_notebooks():
    """What the notebooks draw their figures with."""
    cells = (inputs.of_notebook(ROOT, ROOT / "notebooks" / f"{name}.ipynb") for name in NOTEBOOKS)
    return sorted({*code_of("notebooks")}.union(*cells))


def code_of_importer(wildcards):
    """What a format of published results is read with."""
    return inputs.of_modules(ROOT, [FORMATS[wildcards.published].importer])


def stock_build(wildcards):
    """nginx, curl and OpenSSL are built once; the other flavours add a provider to that build."""
    library = project.libraries[wildcards.library]
    flavour, level, _ = march.parts(wildcards.flavour)
    if library.recipe == "tcp-tls" and flavour != "stock":
        return [str(making.listing(project, wildcards.library, march.named("stock", level)))]
    return []


def builds_of(wildcards):
    """build.json of every build that an experiment measures."""
    return [str(BUILDS[key]) for key in builds_needed(project, [wildcards.experiment])]


def certificate_tools(wildcards):
    """Certificates of post-quantum algorithms need OpenSSL and the provider."""
    if not TABLE.signature(certificates.signature_of(wildcards.signature)).quantum_safe:
        return []
    return [str(components.listing(project, "openssl-provider"))]


def reader_of(wildcards):
    """What reads the traces of an experiment that has some."""
    if not project.experiments[wildcards.experiment].trace:
        return []
    return [str(components.listing(project, "capture-reader"))]


def certificates_of(wildcards):
    """Every certificate and key that an experiment uses."""
    return [
        str(certificates.directory(project, signature) / file)
        for signature in certificates.needed(project, [wildcards.experiment])
        for file in certificates.FILES
    ]


def final_output(kind):
    """Everything a run of the workflow makes: the report and, before it, notebooks, figures and tables."""
    return str(RESULTS[kind] / "report" / "index.html")


def published_tables():
    """Tables of the published results that the configuration has local copies of."""
    return [str(project.published_tables / name / SUMMARY_FILE) for name in project.published]


def published_shown():
    """Tables of published results that notebooks and the report show, of which there is a local copy."""
    return [table for table in published_tables() if FORMATS[Path(table).parent.name].shown]


def markers_of_others(kind):
    """What says that other testbeds were measured, with which a notebook compares."""
    if kind == "reference":
        return []
    found = (RESULTS["own"] / "measured").glob("*/hardware.json")
    return sorted(str(marker) for marker in found if marker.parent.name != TESTBED)


def published_copy(wildcards):
    """The local copy of published results of a format."""
    return str(project.published[wildcards.published])


def directories_of(tables):
    """Directories of imported tables, of which the inputs of a rule have the summaries."""
    return [str(Path(table).parent) for table in tables]


def runs_behind(kind):
    """What the table of runs is made from: finished experiments, or the archives of the reference data."""
    if kind == "reference":
        return [str(archive) for archive in REFERENCE]
    return [
        str(RESULTS["own"] / "measured" / TESTBED / f"{experiment}.json")
        for experiment in EXPERIMENTS
    ]


def figures_drawn(kind):
    """What says that the figures of each experiment were drawn as soon as it was measured."""
    if kind == "reference":
        return []
    return [
        str(RESULTS["own"] / "drawn" / TESTBED / f"{experiment}.json") for experiment in EXPERIMENTS
    ]


def captures_behind(kind):
    """The table of captures dissected again; of the reference data if somebody has made it: it needs tshark and time."""
    table = RESULTS[kind] / "tables" / "captures.parquet"
    if kind == "own":
        return [str(table)]
    return [str(table)] if table.exists() else []


def raw_of(result):
    """The runs that a result is made from."""
    kind = "reference" if Path(result).is_relative_to(RESULTS["reference"]) else "own"
    return str(RAW[kind])


def results_of(table):
    """The directory of results that a table of runs belongs to."""
    return Path(table).parents[1]


def category_of_notebook(name):
    """Where Snakemake's report shows the page of a notebook."""
    return TITLES.get(name, "Notebooks")


def labels_of_notebook(name):
    """What the lists of Snakemake's report say of the page of a notebook."""
    return workflow_report.columns("the notebook, with all its figures", category_of_notebook(name))


def category_of_result(wildcards):
    """Where Snakemake's report shows a figure or table."""
    return workflow_report.CATEGORIES[wildcards.group]


def labels_of_result(wildcards, output):
    """What the lists of Snakemake's report say of a figure or table."""
    return workflow_report.labels(Path(output.results), wildcards.group, wildcards.name)
