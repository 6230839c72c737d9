"""What to do about an answer of an object store: its package says what the store said, and no more."""

from collections.abc import Iterator

_ADVICE = {
    "NoSuchBucket": "there is no such bucket: make it, or correct its name",
    "InvalidBucketName": "no bucket can be called so: correct its name",
    "AccessDenied": "these credentials may not do that there: ask for the right, or use others",
    "AllAccessDisabled": "these credentials may not do that there: ask for the right, or use others",
    "403": "these credentials may not do that there: ask for the right, or use others",
    "Forbidden": "these credentials may not do that there: ask for the right, or use others",
    "InvalidAccessKeyId": "the store does not know the key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY anew",
    "SignatureDoesNotMatch": "the secret is not that of the key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY anew",
    "ExpiredToken": "the credentials have expired: fetch new ones",
    "ExpiredTokenException": "the credentials have expired: fetch new ones",
    "InvalidToken": "the session token is not valid: set AWS_SESSION_TOKEN anew, or unset it",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it, for example with timedatectl set-ntp true",
    "RequestExpired": "this machine's clock is wrong: set it, for example with timedatectl set-ntp true",
    "certificate 9": "this machine's clock is behind, as on a board without a battery: set it, or wait until it is set",
    "certificate 10": "this machine's clock is ahead, or the server needs a new certificate: compare the clock first",
    "PermanentRedirect": "the bucket is in another region: set AWS_DEFAULT_REGION (other stores: AWS_ENDPOINT_URL)",
    "301": "the bucket is in another region: set AWS_DEFAULT_REGION (other stores: AWS_ENDPOINT_URL)",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_DEFAULT_REGION to it",
    "IllegalLocationConstraintException": "the bucket is in another region: set AWS_DEFAULT_REGION to it",
    "NoCredentialsError": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "PartialCredentialsError": "a part of the credentials is missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "ProfileNotFound": "there is no such profile: correct AWS_PROFILE, or ~/.aws/config",
    "NoRegionError": "no region is set: set AWS_DEFAULT_REGION",
    "EndpointConnectionError": "nothing answers there: look at the network, and at AWS_ENDPOINT_URL if it is set",
}
"""By the code of the store's answer, OpenSSL's number of what is wrong with a certificate, or the exception's class."""


def advice_on(error: BaseException) -> str | None:
    """Return what is wrong and what to do, if an exception of a store's package tells; else None."""
    return next((_ADVICE[code] for code in _codes(error) if code in _ADVICE), None)


def _codes(error: BaseException) -> Iterator[str]:
    """Yield what an exception, and those that it comes from, are known by; first what the store said."""
    one: BaseException | None = error
    while one is not None:
        answer = getattr(one, "response", None)
        if isinstance(answer, dict) and isinstance(answer.get("Error"), dict):
            yield str(answer["Error"].get("Code"))
        yield f"certificate {getattr(one, 'verify_code', '')}"
        yield type(one).__name__
        one = one.__cause__ or one.__context__
