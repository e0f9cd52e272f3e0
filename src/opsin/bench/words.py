"""Plain English words, one or two tokens each in most tokenizers, for questions that nobody asked before."""

from __future__ import annotations

_TEXT = """
about above after again air all almost along also always animal another answer any apple arm around ask away back ball
bank base bear beautiful because bed before begin behind best better between big bird black blue boat body book both
bottom box boy bread bridge bring brother brown build bus but buy call came camp car care carry cat catch center certain
chair change child city class clean clear close cloud coat cold color come common corner count country course cover
cross cup cut dark day deep desk different dog door down draw dress drink drive dry each early earth east easy eat edge
egg end enough even evening ever every eye face fact fall family far farm fast father feel feet few field fill final
find fine finger fire first fish five floor flower fly follow food foot force forest form four free fresh friend front
fruit full game garden gave girl glass gold good grass great green ground group grow half hand hard hat head hear heart
heat heavy help here high hill hold home horse hot hour house idea inside island keep kind king kitchen know lake land
large last late laugh lead learn leave left leg less letter level life light line list little long look lost love low
made main make man many map mark may mean metal middle might mile milk mind minute money month moon more morning most
mother mountain mouth move much music name near neck need never new next night north nose note nothing notice now number
object ocean often oil old once one only open orange order other our outside over page paint paper park part pass past
path people perhaps person phone picture piece place plain plan plane plant play point poor power present press pretty
price pull purple push put question quick quiet rain reach read ready real record red rest rich ride right ring river
road rock room round run salt same sand say school science sea season second see seem sentence set seven several shape
sharp ship shirt shoe shop short should shoulder show side sign silver simple since sing sister sit six size skin sky
sleep slow small smile snow soft some song soon sound south space spoon spring square stand star start state station
stay step still stone stop store story street strong such sugar summer sun sure surface table tail take talk tall teach
tell ten thank thick thin thing think third three time today together top touch toward town train tree true turn two
under until upon use very voice wait walk wall want warm wash watch water way weather week weight well west wheel where
which while white whole wide wild wind window winter wire wish woman wonder wood word work world write year yellow young
"""
WORDS = tuple(_TEXT.split())
