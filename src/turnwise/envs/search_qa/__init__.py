"""Answer questions by searching a generated corpus about people, towns, companies and books, in one or several hops."""
