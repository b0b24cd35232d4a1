# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a wheel: CycloneDX 1.6 in JSON, from the locks.

It has all dependencies of the wheel, without extras, for the platform that writes it. The versions
and hashes are those of `locks/image.txt`. torch has the version of `constraints.txt` and no hash.
torch's CUDA libraries are left out, because they depend on the build of torch.
"""

from __future__ import annotations

import email
import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import locks
from locks import Pin, Release

LOCK = locks.ROOT / "locks" / "image.txt"


def write(wheel: Path, created: datetime) -> str:
    """Return the bill of materials of a wheel. Equal wheels and locks give equal texts."""
    fields = _fields(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root = _component("serve-warm", str(fields["Version"]), str(fields["License-Expression"]))
    root.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    pins = _pins()
    described = {
        name: _describe(name, version, pins.get(name)) for name, version in _versions(wheel).items()
    }
    about = BomMetaData(component=root, timestamp=created)
    bom = Bom(
        metadata=about,
        components=described.values(),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
    )
    environment = default_environment()
    for key in ("sys_platform", "platform_machine", "python_version"):
        about.properties.add(Property(name=f"serve_warm:{key}", value=str(environment[key])))
    releases = {**locks.installed(), "serve-warm": _release(wheel)}
    reached = locks.reach([Requirement("serve-warm")], releases)
    for name, component in {"serve-warm": root, **described}.items():
        extras = sorted({extra for each in reached[name] for extra in each.extras})
        asked = Requirement(f"{name}[{','.join(extras)}]")
        direct = locks.reach([asked], {name: releases[name]})
        bom.register_dependency(
            component, [described[each] for each in sorted(set(direct) & set(described) - {name})]
        )
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def problems(text: str, wheel: Path) -> Iterator[str]:
    """Yield the problems of a bill of materials: it is not valid, or not that of the wheel."""
    invalid = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if invalid is not None:
        yield f"it is not CycloneDX 1.6: {str(invalid).splitlines()[0]}"
        return
    fields = json.loads(text)
    root = fields["metadata"]["component"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if [each["content"] for each in root.get("hashes", ())] != [digest]:
        yield f"it is not about {wheel.name}, whose sha256 is {digest}"
    found = {each["name"]: each.get("version") for each in fields.get("components", ())}
    expected = _versions(wheel)
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"{name} is {found.get(name)} in it, and {expected.get(name)} in the locks"


def _fields(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def _release(wheel: Path) -> Release:
    fields = _fields(wheel)
    return Release(
        version=str(fields["Version"]), requires=tuple(fields.get_all("Requires-Dist") or ())
    )


def _versions(wheel: Path) -> dict[str, str]:
    """Return the dependencies of a wheel here, by name, at the versions of the locks."""
    asked = [Requirement(each) for each in _release(wheel).requires]
    reached = locks.reach(asked, locks.installed())
    names = {name for name in reached if name == "torch" or not locks.is_of_torch(name)}
    found = {name: pin.version for name, pin in _pins().items() if name in names}
    [torch] = [each for each in locks.constraints() if each.name == "torch"]
    found["torch"] = str(torch.specifier).removeprefix("==")
    if missing := sorted(names - set(found)):
        raise SystemExit(f"{LOCK.name} lacks {', '.join(missing)}: run make lock")
    return dict(sorted(found.items()))


def _pins() -> dict[str, Pin]:
    here = {key: str(value) for key, value in default_environment().items()}
    return {pin.name: pin for pin in locks.read(LOCK.read_text()) if pin.is_for(here)}


def _describe(name: str, version: str, pin: Pin | None) -> Component:
    try:
        fields = metadata.metadata(name)
        said = fields.get("License-Expression") or fields.get("License") or ""
    except metadata.PackageNotFoundError:
        said = ""
    component = _component(name, version, said if len(said) < 80 and "\n" not in said else "")
    if pin is not None:
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pin.hashes]
        component.external_references.add(
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(str(component.purl)),
                comment="the files of this release, for all platforms",
                hashes=hashes,
            )
        )
    return component


def _component(name: str, version: str, licence: str) -> Component:
    name = canonicalize_name(name)
    purl = PackageURL("pypi", None, name, version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else (),
    )
