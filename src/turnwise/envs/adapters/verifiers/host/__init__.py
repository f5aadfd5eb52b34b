"""The process that holds an environment of verifiers: a server of OpenEnv's protocol in the Python of that package.

Imports the standard library, verifiers, and what verifiers itself needs; of turnwise only this package.
"""
