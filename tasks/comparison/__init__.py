"""Which version is better, is the difference real, and may it replace the one in use?"""
