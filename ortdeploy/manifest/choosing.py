"""Chooses the profile that runs on a machine, by the `when` of all profiles; or says why none can be chosen."""

from msgspec.structs import replace

from ortdeploy.diagnostics import Certainty, Diagnostic
from ortdeploy.facts.variants import OTHERWISE, WHEN, Choice, Fact, shown_fact
from ortdeploy.manifest.document import Document, Path, stage_diagnostic
from ortdeploy.manifest.when import BASE, PROFILES, REFUSE, Ask, Term, Variants, When, judge
from ortdeploy.manifest.when import OTHERWISE as OTHERWISE_KEY


def choose(variants: Variants, document: Document, ask: Ask, *, here: bool) -> tuple[Choice | None, Diagnostic | None]:
    """Return the choice with the facts that were asked for, or the finding that there is none.

    `here`: the facts are those of this machine, and not of a device file.
    """
    facts: dict[str, Fact] = {}

    def known(term: Term) -> Fact:
        if term.fact not in facts:
            facts[term.fact] = ask(term)
        return facts[term.fact]

    judged = [(when, *judge(when, known)) for when in variants.whens]
    true = [when for when, holds, _ in judged if holds]
    undecided = [(when, unknown) for when, holds, unknown in judged if holds is None]
    if len(true) > 1:
        return None, _finding("ambiguous-profile", _ambiguous(true), true[1].at, document)
    if undecided:
        when, unknown = undecided[0]
        return None, _finding("undecided-profile", _undecided(when, unknown, here=here), unknown[0].at, document)
    if true:
        return Choice(name=true[0].profile, reason=WHEN, facts=facts), None
    if variants.otherwise == REFUSE:
        return None, _finding("no-profile", _none(variants, facts), (PROFILES, OTHERWISE_KEY), document)
    name = None if variants.otherwise == BASE else variants.otherwise
    return Choice(name=name, reason=OTHERWISE, facts=facts), None


def _finding(rule: str, detail: str, at: Path, document: Document) -> Diagnostic:
    return replace(stage_diagnostic(rule, detail, document.locate_key(at)), certainty=Certainty.MACHINE)


def _ambiguous(true: list[When]) -> str:
    names = " and ".join(f'"{when.profile}"' for when in true)
    return (
        f"The profiles {names} hold on this device, and one deployment runs one of them. Let one of them exclude the "
        "other, with not:, a bound, or a label."
    )


def _undecided(when: When, unknown: tuple[Term, ...], *, here: bool) -> str:
    fields = " and ".join(dict.fromkeys(term.field for term in unknown))
    facts = ", ".join(dict.fromkeys(term.fact for term in unknown))
    of_file = f"Add {fields} to its device file; ortdeploy device writes it there."
    remedy = "This system does not tell; ask for something else, such as a label." if here else of_file
    return (
        f'Whether profile "{when.profile}" holds depends on what is not known of this device: {facts}. {remedy} Or '
        "name the profile with --profile."
    )


def _none(variants: Variants, facts: dict[str, Fact]) -> str:
    names = ", ".join(f'"{when.profile}"' for when in variants.whens)
    shown = ", ".join(f"{name}: {shown_fact(name, value)}" for name, value in sorted(facts.items()))
    return (
        f"None of the profiles {names} holds on this device ({shown}), and otherwise: is refuse. "
        "Correct a when:, or name a profile with --profile."
    )
